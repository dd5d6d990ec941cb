// What the handles of cuBLAS, cuSOLVER and cuSPARSE hold.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "../cuda/counters.h"
#include "../engine/memory_map.h"

namespace standin {

enum class PointerMode { host = 0, device = 1 };

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

}  // namespace standin
