#include "devices.h"

#include <cuda_profiler_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "../engine/launch_limits.h"
#include "../engine/memory_map.h"
#include "../engine/settings.h"
#include "counters.h"
#include "late.h"
#include "missing.h"

namespace standin {
namespace {

constexpr int kCudaVersion = 12090;  // of the headers that CuPy is built with
constexpr int kMaxGridX = 2147483647, kMaxGridYZ = 65535, kMaxBlockZ = 64;
constexpr int kRegisters = 65536, kThreadsPerMultiprocessor = 2048, kBlocksPerMultiprocessor = 32;
constexpr int kSharedBytesPerMultiprocessor = 164 * 1024, kClockKilohertz = 1000000;
constexpr int kConstantBytes = 65536, kCacheBytes = 4 << 20;

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

std::atomic<size_t>& limit() {
    static std::atomic<size_t> bytes{bytes_setting("STANDIN_MEMORY_LIMIT", size_t(8) << 30)};
    return bytes;
}

int multiprocessors() {
    static const int count = integer_setting("STANDIN_MULTIPROCESSORS", 4);
    return count;
}

}  // namespace

int device_count() {
    static const int count = integer_setting("STANDIN_DEVICES", 1);
    return count;
}

int current_device() { return device_of_thread; }
bool is_device(int device) { return device >= 0 && device < device_count(); }

int compute_capability() {
    static const int capability = integer_setting("STANDIN_COMPUTE_CAPABILITY", 80);
    return capability;
}

size_t memory_limit() { return limit().load(); }

bool memory_is_left(size_t bytes, int device) {
    const size_t used = bytes_in_use(device), total = memory_limit();
    return used <= total && bytes <= total - used;
}

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

}  // namespace standin

using namespace standin;

extern "C" {

// ---- for standin.py

void standin_set_memory_limit(size_t bytes) { limit() = bytes; }
size_t standin_memory_limit() { return memory_limit(); }
size_t standin_bytes_in_use(int device) { return bytes_in_use(device); }

// ---- errors and versions

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorAssert: return "cudaErrorAssert";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
    }
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorAssert: return "device-side assert triggered";
    case cudaErrorNotSupported: {
        static thread_local std::string text;
        const std::string missing = last_missing_function();
        text = "operation not supported by the CUDA stand-in";
        if (!missing.empty()) text += "; the last missing function was " + missing;
        return text.c_str();
    }
    default: return "unknown error";
    }
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaDriverGetVersion(int* version) {
    *version = kCudaVersion;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = kCudaVersion;
    return cudaSuccess;
}

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return device_count() > 0 ? cudaSuccess : remember(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (!is_device(device)) return remember(cudaErrorInvalidDevice);
    device_of_thread = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    count(kDeviceSynchronizations);
    return finish_device(current_device());
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (!is_device(device)) return remember(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = kMaxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimZ: *value = kMaxBlockZ; break;
    case cudaDevAttrMaxGridDimX: *value = kMaxGridX; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = kMaxGridYZ; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = kSharedBytesPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedBytesPerBlockOptIn; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = kSharedBytesPerMultiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrTotalConstantMemory: *value = kConstantBytes; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = kRegisters; break;
    case cudaDevAttrMultiProcessorCount: *value = multiprocessors(); break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = kThreadsPerMultiprocessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = kBlocksPerMultiprocessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = compute_capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = compute_capability() % 10; break;
    case cudaDevAttrL2CacheSize: *value = kCacheBytes; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = kClockKilohertz; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 256; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrAsyncEngineCount: *value = 1; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (!is_device(device)) return remember(cudaErrorInvalidDevice);
    cudaDeviceProp& p = *properties;
    memset(&p, 0, sizeof p);
    snprintf(p.name, sizeof p.name, "CPU stand-in %d (no GPU)", device);
    p.totalGlobalMem = memory_limit();
    p.sharedMemPerBlock = kSharedBytesPerBlock;
    p.sharedMemPerBlockOptin = kSharedBytesPerBlockOptIn;
    p.sharedMemPerMultiprocessor = kSharedBytesPerMultiprocessor;
    p.regsPerBlock = p.regsPerMultiprocessor = kRegisters;
    p.warpSize = 32;
    p.memPitch = kMaxGridX;
    p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = kMaxThreadsPerBlock;
    p.maxThreadsDim[2] = kMaxBlockZ;
    p.maxGridSize[0] = kMaxGridX;
    p.maxGridSize[1] = p.maxGridSize[2] = kMaxGridYZ;
    p.clockRate = p.memoryClockRate = kClockKilohertz;
    p.memoryBusWidth = 256;
    p.totalConstMem = kConstantBytes;
    p.major = compute_capability() / 10;
    p.minor = compute_capability() % 10;
    p.textureAlignment = 512;
    p.multiProcessorCount = multiprocessors();
    p.maxThreadsPerMultiProcessor = kThreadsPerMultiprocessor;
    p.maxBlocksPerMultiProcessor = kBlocksPerMultiprocessor;
    p.l2CacheSize = kCacheBytes;
    p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = 1;
    p.managedMemory = p.memoryPoolsSupported = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* bus) {
    unsigned number = 0;
    if (sscanf(bus, "%*x:%x", &number) != 1 || !is_device(number))
        return remember(cudaErrorInvalidValue);
    *device = number;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* bus, int capacity, int device) {
    if (!is_device(device)) return remember(cudaErrorInvalidDevice);
    snprintf(bus, capacity, "0000:%02X:00.0", device);
    return cudaSuccess;
}

// No device sees another one's memory, so that a mix-up of two devices cannot pass unnoticed.
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit which) {
    switch (which) {
    case cudaLimitStackSize: *value = 1024; break;
    case cudaLimitPrintfFifoSize: *value = 1 << 20; break;
    case cudaLimitMallocHeapSize: *value = 8 << 20; break;
    default: return remember(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
}
