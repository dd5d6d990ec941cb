// What a CUDA C++ kernel source sees when the stand-in compiles it with g++.
//
// Written from the public CUDA C++ programming guide. Every kernel source gets this header first,
// as NVRTC's built-in declarations come first. The names that begin with standin_ are calls into
// the engine (src/engine/executor.cpp), which runs the threads of a block as fibers.
#pragma once

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cfloat>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#define __CUDA_STANDIN__ 1

// CuPy's own headers need NVIDIA's vector types; kernel_runner.py does without NVIDIA's headers.
#ifdef STANDIN_NVIDIA_HEADERS
#include <vector_functions.h>
#include <vector_types.h>
#else
#include "standin_vector_types.h"
#endif

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __managed__
#undef __grid_constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
// One block runs at a time, so a static variable can stand for shared memory. A section of its own
// lets the engine poison it before every block.
#define __shared__ static __attribute__((section("standin_shared")))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

extern "C" {
void standin_barrier(const char* file, int line);
int standin_barrier_count(const char* file, int line, int predicate);
void standin_warp_sync(unsigned mask);
uint64_t standin_warp_read(unsigned mask, uint64_t value, int source_lane);
// The values of all 32 lanes, until the next sync; and which of the mask had not ended.
uint64_t* standin_warp_gather(unsigned mask, uint64_t value);
unsigned standin_gathered_lanes();
unsigned standin_active_lanes();
int standin_lane();
void* standin_dynamic_shared();
void standin_fail(const char* what, const char* file, int line) __attribute__((noreturn));
}

#undef assert
#define assert(condition) \
    ((condition) ? (void)0 : standin_fail("assert(" #condition ")", __FILE__, __LINE__))
#define __trap() standin_fail("__trap()", __FILE__, __LINE__)

#define __syncthreads() standin_barrier(__FILE__, __LINE__)
#define __syncthreads_count(p) standin_barrier_count(__FILE__, __LINE__, !!(p))
#define __syncthreads_and(p) (standin_barrier_count(__FILE__, __LINE__, !(p)) == 0)
#define __syncthreads_or(p) (standin_barrier_count(__FILE__, __LINE__, !!(p)) != 0)
// One OS thread runs all CUDA threads, in program order: fences have nothing to do.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

#include "standin_atomics.h"
#include "standin_export.h"
#include "standin_math.h"
#include "standin_special_functions.h"
#include "standin_warp.h"
