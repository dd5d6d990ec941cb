"""Kernels of one's own, through CuPy's RawModule."""

from __future__ import annotations

import cupy as cp
import numpy as np
import pytest

SOURCE = r"""
extern "C" __global__ void block_sum(const float* x, float* y, int n) {
    __shared__ float part[128];
    const int t = threadIdx.x;
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[t] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half >>= 1) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) atomicAdd(y, part[0]);
}

extern "C" __global__ void warp_sum(const float* x, float* y, int n) {
    extern __shared__ float staged[];
    const int t = threadIdx.x;
    staged[t] = t < n ? x[t] : 0;
    __syncthreads();
    float value = staged[t];
    for (int step = 16; step > 0; step >>= 1) value += __shfl_down_sync(0xffffffffu, value, step);
    if (t % 32 == 0) atomicAdd(y, value);
}

template <class T>
__global__ void scale(T* x, T factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}

__constant__ float factors[2];
extern "C" __global__ void apply(float* x) { x[threadIdx.x] *= factors[threadIdx.x % 2]; }
"""


@pytest.fixture(scope="module")
def module():
    return cp.RawModule(code=SOURCE, name_expressions=("scale<float>", "scale<double>"))


def test_barriers_and_atomics(module):
    x, y = cp.arange(1000, dtype=cp.float32), cp.zeros(1, cp.float32)
    module.get_function("block_sum")((4,), (128,), (x, y, np.int32(1000)))
    assert float(y[0]) == 499500


def test_shuffles_and_dynamic_shared_memory(module):
    x, y = cp.arange(1000, dtype=cp.float32), cp.zeros(1, cp.float32)
    module.get_function("warp_sum")((1,), (256,), (x, y, np.int32(200)), shared_mem=1024)
    assert float(y[0]) == 19900


def test_template_instances(module):
    x = cp.ones(10)
    module.get_function("scale<double>")((1,), (32,), (x, np.float64(3), np.int32(10)))
    assert x.get().tolist() == [3] * 10


def test_constant_memory(module):
    factors = module.get_global("factors")
    cp.ndarray(2, cp.float32, factors)[...] = cp.asarray([2, 3], cp.float32)
    x = cp.ones(4, cp.float32)
    module.get_function("apply")((1,), (4,), (x,))
    assert x.get().tolist() == [2, 3, 2, 3]


def test_macros_reach_the_kernel():
    source = 'extern "C" __global__ void f(T* x) { x[threadIdx.x] = VALUE; }'
    kernel = cp.RawKernel(source, "f", options=("-DT=float", "-DVALUE=5"))
    x = cp.zeros(3, cp.float32)
    kernel((1,), (3,), (x,))
    assert x.get().tolist() == [5] * 3


def test_a_python_float_arrives_as_a_double(module):
    # As on a GPU: the kernel takes the first four bytes of the double for its float.
    x = cp.ones(4, cp.float32)
    module.get_function("scale<float>")((1,), (4,), (x, 3.0, np.int32(4)))
    assert x.get().tolist() == [0] * 4


def test_a_broken_source_is_refused():
    with pytest.raises(cp.cuda.compiler.CompileException, match="undeclared_name"):
        cp.RawKernel('extern "C" __global__ void f() { undeclared_name = 1; }', "f")((1,), (1,), ())


def test_too_much_shared_memory_is_refused(module, capfd):
    arguments = (cp.zeros(1, cp.float32), cp.zeros(1, cp.float32), np.int32(1))
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="INVALID_VALUE"):
        module.get_function("warp_sum")((1,), (32,), arguments, shared_mem=64 * 1024)
    assert "65536 bytes of dynamic shared memory" in capfd.readouterr().err


def test_a_write_past_an_array_stops_the_kernel(exact_allocations, capfd):
    kernel = cp.RawKernel('extern "C" __global__ void poke(int* x, int i) { x[i] = 1; }', "poke")
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="ILLEGAL_ADDRESS"):
        kernel((1,), (1,), (cp.zeros(10, cp.int32), np.int32(10)))
    assert "kernel poke: wr" in capfd.readouterr().err


@pytest.fixture
def exact_allocations():
    import standin

    with standin.exact_allocations():
        yield


def test_static_shared_memory_beyond_48_kib_is_refused_by_the_compiler():
    source = """extern "C" __global__ void f(double* x) {
        __shared__ double part[6145]; part[threadIdx.x] = x[0]; x[0] = part[0]; }"""
    with pytest.raises(cp.cuda.compiler.CompileException, match="too much shared data"):
        cp.RawKernel(source, "f").compile()
    cp.RawKernel(source.replace("6145", "6144"), "f").compile()
