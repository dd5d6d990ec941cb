// CUDA runtime: allocation, copies, pools. "Device" memory is host memory with a label.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "../engine/memory_map.h"
#include "counters.h"
#include "devices.h"
#include "late.h"

using namespace standin;

extern "C" void standin_poison_device(void*, size_t, void*, int);  // late.cpp

// ---- memory pools

struct MemoryPool {
    int device;
    uint64_t release_threshold;
    uint64_t used, used_high;
    uint64_t reserved, reserved_high;
};

namespace {

std::mutex pools_mutex;
std::map<int, MemoryPool*> default_pools, current_pools;  // by device
// Never destroyed: memory may be freed when the process is about to end.
std::map<void*, MemoryPool*>& pool_of_block = *new std::map<void*, MemoryPool*>;

// With pools_mutex held.
MemoryPool* default_pool(int device) {
    MemoryPool*& pool = default_pools[device];
    if (!pool) pool = new MemoryPool{device, 0, 0, 0, 0, 0};
    return pool;
}

// With pools_mutex held.
MemoryPool* current_pool(int device) {
    MemoryPool*& pool = current_pools[device];
    if (!pool) pool = default_pool(device);
    return pool;
}

// ---- allocation

cudaError_t allocate(void** address, size_t bytes, MemoryKind kind) {
    if (!address) return remember(cudaErrorInvalidValue);
    *address = nullptr;
    if (bytes == 0) return cudaSuccess;
    const int device = current_device();
    if (kind != MemoryKind::pinned && !memory_is_left(bytes, device))
        return remember(cudaErrorMemoryAllocation);
    *address = allocate_region(bytes, kind, device);
    if (!*address) return remember(cudaErrorMemoryAllocation);
    if (kind != MemoryKind::pinned) {
        count(kAllocations);
        count(kAllocatedBytes, bytes);
    }
    return cudaSuccess;
}

// Kernels are checked after every launch; this finds what a library function or a copy did.
void report_damage() {
    const std::string damage = find_damage();
    if (!damage.empty()) fprintf(stderr, "[standin] something %s\n", damage.c_str());
}

cudaError_t release(void* address, bool pinned) {
    if (!address) return cudaSuccess;
    report_damage();
    auto region = find_region(address);
    if (!region || region->begin != reinterpret_cast<uintptr_t>(address))
        return remember(cudaErrorInvalidValue);
    if ((region->kind == MemoryKind::pinned) != pinned) return remember(cudaErrorInvalidValue);
    free_region(address);
    if (!pinned) count(kFrees);
    return cudaSuccess;
}

cudaError_t allocate_from(MemoryPool* pool, void** address, size_t bytes) {
    const cudaError_t error = allocate(address, bytes, MemoryKind::device);
    if (error != cudaSuccess || !*address) return error;
    std::lock_guard<std::mutex> lock(pools_mutex);
    pool_of_block[*address] = pool;
    pool->used += bytes;
    pool->used_high = std::max(pool->used_high, pool->used);
    pool->reserved = std::max(pool->reserved, pool->used);
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    return cudaSuccess;
}

// ---- copies

bool is_device_memory(const std::optional<Region>& region) {
    return region && (region->kind == MemoryKind::device || region->kind == MemoryKind::managed);
}

bool overruns(const std::optional<Region>& region, const void* address, size_t bytes) {
    return region && !region->holds(reinterpret_cast<uintptr_t>(address), bytes);
}

// The direction that a copy takes, by where its two ends are.
cudaMemcpyKind direction(const std::optional<Region>& to, const std::optional<Region>& from) {
    if (is_device_memory(to))
        return is_device_memory(from) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return is_device_memory(from) ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

void count_copy(cudaMemcpyKind kind, size_t bytes, bool blocking) {
    switch (kind) {
    case cudaMemcpyHostToDevice:
        count(kHostToDeviceCopies);
        count(kHostToDeviceBytes, bytes);
        break;
    case cudaMemcpyDeviceToHost:
        count(kDeviceToHostCopies);
        count(kDeviceToHostBytes, bytes);
        break;
    case cudaMemcpyDeviceToDevice:
        count(kDeviceToDeviceCopies);
        count(kDeviceToDeviceBytes, bytes);
        break;
    default: return;
    }
    if (blocking) count(kBlockingCopies);
}

enum class Issue { synchronous, asynchronous };

// Rows of bytes that lie a pitch apart; a plain copy is one row.
struct Rows {
    char* to;
    size_t to_pitch;
    const char* from;
    size_t from_pitch, width, height;

    void move() const {
        for (size_t row = 0; row < height; row++)
            memmove(to + row * to_pitch, from + row * from_pitch, width);
    }
    size_t to_extent() const { return (height - 1) * to_pitch + width; }
    size_t from_extent() const { return (height - 1) * from_pitch + width; }
};

// Copies from memory that a call may change or free as soon as it returned.
struct StagedRows {
    std::vector<char> bytes;
    Rows rows;

    explicit StagedRows(const Rows& given)
        : bytes(given.from, given.from + given.from_extent()), rows(given) {
        rows.from = bytes.data();
    }
};

HostRange pinned_range(const std::optional<Region>& region, const void* address, size_t bytes) {
    if (!region || region->kind != MemoryKind::pinned) return {};
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
    return {begin, begin + bytes};
}

// When a copy is done, and when its call returns, is in CUDA's "API synchronization behavior".
cudaError_t copy(const Rows& rows, cudaMemcpyKind kind, Issue issued, Stream& stream) {
    if (rows.width == 0 || rows.height == 0) return cudaSuccess;
    if (!rows.to || !rows.from) return remember(cudaErrorInvalidValue);
    const auto target = find_region(rows.to), source = find_region(rows.from);
    if (overruns(target, rows.to, rows.to_extent()) ||
        overruns(source, rows.from, rows.from_extent())) {
        fprintf(stderr, "[standin] a copy of %zu bytes exceeds an allocation\n",
                rows.width * rows.height);
        return remember(cudaErrorInvalidValue);
    }
    const bool from_device = source && source->kind == MemoryKind::device;
    const bool to_device = target && target->kind == MemoryKind::device;
    const bool wrong_way = (kind == cudaMemcpyHostToDevice && from_device) ||
                           (kind == cudaMemcpyDeviceToHost && to_device);
    if (wrong_way) {
        fprintf(stderr, "[standin] a copy goes against its declared direction\n");
        return remember(cudaErrorInvalidValue);
    }
    // A declared direction counts: __device__ variables are in no region.
    const cudaMemcpyKind actual = kind == cudaMemcpyDefault ? direction(target, source) : kind;
    const bool pageable_source = actual == cudaMemcpyHostToDevice && !source;
    const bool pageable_target = actual == cudaMemcpyDeviceToHost && !target;
    const bool blocking =
        pageable_target || (issued == Issue::synchronous && actual != cudaMemcpyDeviceToDevice);
    for (size_t row = 0; row < rows.height; row++)
        count_copy(actual, rows.width, blocking);

    if (pageable_source && late_streams_are_on) {
        // The host waits until the bytes are in a buffer of the driver, not until they are there.
        if (issued == Issue::synchronous) finish(stream);
        const auto staged = std::make_shared<StagedRows>(rows);
        return issue(stream, [staged] {
            staged->rows.move();
            return cudaSuccess;
        });
    }
    const HostRange read = pinned_range(source, rows.from, rows.from_extent()),
                    written = pinned_range(target, rows.to, rows.to_extent());
    const cudaError_t error = issue(
        stream,
        [rows] {
            rows.move();
            return cudaSuccess;
        },
        read.end ? read : written);
    if (error != cudaSuccess) return error;
    return blocking || actual == cudaMemcpyHostToHost ? finish(stream) : cudaSuccess;
}

Rows one_row(void* to, const void* from, size_t bytes) {
    return {static_cast<char*>(to), bytes, static_cast<const char*>(from), bytes, bytes, 1};
}

cudaError_t fill(void* address, int value, size_t bytes, Stream& stream) {
    if (bytes == 0) return cudaSuccess;
    const auto region = find_region(address);
    if (!region || overruns(region, address, bytes)) {
        fprintf(stderr, "[standin] a fill of %zu bytes exceeds its allocation\n", bytes);
        return remember(cudaErrorInvalidValue);
    }
    const cudaError_t error = issue(
        stream,
        [=] {
            memset(address, value, bytes);
            return cudaSuccess;
        },
        pinned_range(region, address, bytes));
    if (error != cudaSuccess || region->kind != MemoryKind::pinned) return error;
    return finish(stream);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
    return allocate(address, bytes, MemoryKind::device);
}

cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) {
    return allocate(address, bytes, MemoryKind::managed);
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
    return allocate(address, bytes, MemoryKind::pinned);
}

// Both wait for everything that may still use the memory.
cudaError_t cudaFree(void* address) {
    run_everything();
    return release(address, false);
}

cudaError_t cudaFreeHost(void* address) {
    run_everything();
    return release(address, true);
}

cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    const size_t used = bytes_in_use(current_device());
    *total = memory_limit();
    *free = used < *total ? *total - used : 0;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    memset(attributes, 0, sizeof *attributes);
    const auto region = find_region(address);
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = const_cast<void*>(address);
    if (!region) return cudaSuccess;
    attributes->type = static_cast<cudaMemoryType>(region->kind);
    attributes->device = region->device;
    attributes->devicePointer = const_cast<void*>(address);
    if (region->kind == MemoryKind::device) attributes->hostPointer = nullptr;
    return cudaSuccess;
}

// ---- copies and fills

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return copy(one_row(to, from, bytes), kind, Issue::synchronous, stream_of(nullptr));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return copy(one_row(to, from, bytes), kind, Issue::asynchronous, stream_of(stream));
}

// Between devices: waits for the work of both.
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                           size_t bytes) {
    finish_device(to_device);
    finish_device(from_device);
    return copy(one_row(to, from, bytes), cudaMemcpyDeviceToDevice, Issue::synchronous,
                legacy_stream(to_device));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
    return copy(one_row(to, from, bytes), cudaMemcpyDeviceToDevice, Issue::asynchronous,
                stream_of(stream));
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
    const Rows rows{static_cast<char*>(to),
                    to_pitch,
                    static_cast<const char*>(from),
                    from_pitch,
                    width,
                    height};
    return copy(rows, kind, Issue::synchronous, stream_of(nullptr));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
    const Rows rows{static_cast<char*>(to),
                    to_pitch,
                    static_cast<const char*>(from),
                    from_pitch,
                    width,
                    height};
    return copy(rows, kind, Issue::asynchronous, stream_of(stream));
}

// Asynchronous too, unless it fills pinned memory.
cudaError_t cudaMemset(void* address, int value, size_t bytes) {
    return fill(address, value, bytes, stream_of(nullptr));
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
    return fill(address, value, bytes, stream_of(stream));
}

cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }

// ---- stream-ordered pools

// The memory is the caller's from here on in the order of the stream: until then, whoever had it
// before may write to it.
cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
    cudaError_t error = allocate_from(reinterpret_cast<MemoryPool*>(pool), address, bytes);
    if (error == cudaErrorMemoryAllocation && late_streams_are_on) {
        // Frees that are still to come give memory back.
        run_everything();
        error = allocate_from(reinterpret_cast<MemoryPool*>(pool), address, bytes);
    }
    if (error == cudaSuccess) standin_poison_device(*address, bytes, stream, current_device());
    return error;
}

cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
    MemoryPool* pool;
    {
        std::lock_guard<std::mutex> lock(pools_mutex);
        pool = current_pool(current_device());
    }
    return cudaMallocFromPoolAsync(address, bytes, reinterpret_cast<cudaMemPool_t>(pool), stream);
}

// Freed in the order of the stream. The pool counts it as free at once.
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
    const auto region = find_region(address);
    if (region) {
        std::lock_guard<std::mutex> lock(pools_mutex);
        auto owner = pool_of_block.find(address);
        if (owner != pool_of_block.end()) {
            owner->second->used -= region->bytes;
            pool_of_block.erase(owner);
        }
    }
    return issue(stream_of(stream), [=] { return release(address, false); });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    std::lock_guard<std::mutex> lock(pools_mutex);
    *pool = reinterpret_cast<cudaMemPool_t>(default_pool(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    std::lock_guard<std::mutex> lock(pools_mutex);
    *pool = reinterpret_cast<cudaMemPool_t>(current_pool(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    std::lock_guard<std::mutex> lock(pools_mutex);
    current_pools[device] = reinterpret_cast<MemoryPool*>(pool);
    return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
    auto* created = new MemoryPool{properties->location.id, 0, 0, 0, 0, 0};
    *pool = reinterpret_cast<cudaMemPool_t>(created);
    return cudaSuccess;
}

// Kept: blocks may outlive their pool.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t bytes_to_keep) {
    std::lock_guard<std::mutex> lock(pools_mutex);
    auto* pool = reinterpret_cast<MemoryPool*>(handle);
    pool->reserved =
        std::max<uint64_t>(pool->used, std::min<uint64_t>(pool->reserved, bytes_to_keep));
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
    std::lock_guard<std::mutex> lock(pools_mutex);
    const auto* pool = reinterpret_cast<MemoryPool*>(handle);
    auto* number = static_cast<uint64_t*>(value);
    switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies: *static_cast<int*>(value) = 1; break;
    case cudaMemPoolAttrReleaseThreshold: *number = pool->release_threshold; break;
    case cudaMemPoolAttrReservedMemCurrent: *number = pool->reserved; break;
    case cudaMemPoolAttrReservedMemHigh: *number = pool->reserved_high; break;
    case cudaMemPoolAttrUsedMemCurrent: *number = pool->used; break;
    case cudaMemPoolAttrUsedMemHigh: *number = pool->used_high; break;
    default: return remember(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
    std::lock_guard<std::mutex> lock(pools_mutex);
    auto* pool = reinterpret_cast<MemoryPool*>(handle);
    switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold:
        pool->release_threshold = *static_cast<uint64_t*>(value);
        break;
    case cudaMemPoolAttrReservedMemHigh: pool->reserved_high = pool->reserved; break;
    case cudaMemPoolAttrUsedMemHigh: pool->used_high = pool->used; break;
    default: break;
    }
    return cudaSuccess;
}
}
