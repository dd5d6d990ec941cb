// The devices that the stand-in pretends to have, and the state of the calling host thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace standin {

int device_count();    // STANDIN_DEVICES, 1 unless told
int current_device();  // of the calling host thread
bool is_device(int device);
int compute_capability();  // STANDIN_COMPUTE_CAPABILITY, 80 unless told
size_t memory_limit();     // of every device; STANDIN_MEMORY_LIMIT, 8G unless told
bool memory_is_left(size_t bytes, int device);

// Remembers an error for cudaGetLastError, and returns it.
cudaError_t remember(cudaError_t error);

}  // namespace standin
