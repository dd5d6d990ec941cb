// CUDA runtime: streams and events. Everything runs when it is issued, so waiting has nothing to
// do; it is counted.
#include <cuda_runtime_api.h>

#include <chrono>

#include "counters.h"
#include "devices.h"

using namespace standin;

namespace {

using Clock = std::chrono::steady_clock;

struct Stream {
    unsigned flags;
    int priority;
    int device;
};

struct Event {
    unsigned flags;
    bool recorded = false;
    Clock::time_point time;
};

// The handles 0, 1 and 2 mean the legacy and the per-thread default stream.
Stream* own_stream(cudaStream_t stream) {
    return reinterpret_cast<uintptr_t>(stream) > 2 ? reinterpret_cast<Stream*>(stream) : nullptr;
}

Event* own_event(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    *stream = reinterpret_cast<cudaStream_t>(new Stream{flags, priority, current_device()});
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete own_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    *flags = own_stream(stream) ? own_stream(stream)->flags : 0;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    *priority = own_stream(stream) ? own_stream(stream)->priority : 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
    count(kStreamSynchronizations);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
    function(data);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = reinterpret_cast<cudaEvent_t>(new Event{flags, false, {}});
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete own_event(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    own_event(event)->time = Clock::now();
    own_event(event)->recorded = true;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventSynchronize(cudaEvent_t) {
    count(kEventSynchronizations);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
    const Event *begin = own_event(first), *end = own_event(second);
    const bool timed = !((begin->flags | end->flags) & cudaEventDisableTiming);
    if (!begin->recorded || !end->recorded || !timed)
        return remember(cudaErrorInvalidResourceHandle);
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
    return cudaSuccess;
}
}
