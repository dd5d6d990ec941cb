// What the handles of cuBLAS, cuSOLVER and cuSPARSE hold.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "../cuda/counters.h"
#include "../cuda/late.h"
#include "../engine/memory_map.h"

namespace standin {

enum class PointerMode { host = 0, device = 1 };

// The stream of the calls that come next from this thread. CuPy sets the stream of a handle before
// each call, whatever the library.
inline thread_local cudaStream_t stream_of_calls = nullptr;

// Counts a call that runs at once: when everything before it in its stream is done.
inline void begin_call() {
    count(kLibraryCalls);
    finish(stream_of(stream_of_calls));
}

// Counts a call, and gives its work to its stream.
template <class Function>
void late_call(cudaStream_t stream, Function work) {
    count(kLibraryCalls);
    issue(stream_of(stream), [work] {
        work();
        return cudaSuccess;
    });
}

struct LibraryHandle {
    cudaStream_t stream = nullptr;
    PointerMode pointer_mode = PointerMode::host;
    int math_mode = 0;
};

// A scalar must be where the pointer mode says: real libraries crash otherwise, or read nonsense.
inline bool scalar_is_misplaced(const LibraryHandle& handle, const void* scalar,
                                const char* function) {
    const auto region = find_region(scalar);
    const bool on_device = region && region->kind == MemoryKind::device;
    const bool misplaced =
        handle.pointer_mode == PointerMode::host ? on_device : !region.has_value();
    if (misplaced)
        fprintf(stderr, "[standin] %s: a scalar in %s memory, but the pointer mode is %s\n",
                function, on_device ? "device" : "host", on_device ? "host" : "device");
    return misplaced;
}

// A scalar as a call found it. One on the device is read when the work runs.
template <class T>
class Scalar {
  public:
    Scalar(const LibraryHandle& handle, const void* given)
        : on_device_(handle.pointer_mode == PointerMode::device),
          given_(static_cast<const T*>(given)),
          value_(on_device_ ? T() : *given_) {}
    const T* address() const { return on_device_ ? given_ : &value_; }

  private:
    bool on_device_;
    const T* given_;
    T value_;
};

}  // namespace standin
