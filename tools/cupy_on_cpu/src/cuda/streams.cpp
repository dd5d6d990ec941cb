// CUDA runtime: streams and events. Work runs when it is issued, or late (late.h).
#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>

#include "counters.h"
#include "devices.h"
#include "late.h"

using namespace standin;

namespace {

using Clock = std::chrono::steady_clock;

// What a record leaves behind; it may be done after the event was recorded again, or destroyed.
struct Record {
    Mark mark;
    uint64_t work;  // that had been issued before
    Clock::time_point time;
};

struct Event {
    unsigned flags;
    int device;
    std::shared_ptr<Record> record;  // null before the first
};

Event* own_event(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

bool is_pending(const Event* event) { return event->record && !is_reached(event->record->mark); }

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    *stream = reinterpret_cast<cudaStream_t>(create_stream(flags, priority, current_device()));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

// Its work is still to be done, so it stays.
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    *flags = stream_of(stream).flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    *priority = stream_of(stream).priority;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    count(kStreamSynchronizations);
    return finish(stream_of(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    Stream& stream = stream_of(handle);
    const Mark end{&stream, stream.issued};
    if (is_reached(end)) return cudaSuccess;
    asked_in_vain(end);
    return cudaErrorNotReady;
}

// The record that counts is the last before this call; without one, there is nothing to wait for.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (const auto record = own_event(event)->record) wait_for(stream_of(stream), record->mark);
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
    return issue(stream_of(stream), [=] {
        callback(stream, cudaSuccess, data);
        return cudaSuccess;
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return issue(stream_of(stream), [=] {
        function(data);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = reinterpret_cast<cudaEvent_t>(new Event{flags, current_device(), nullptr});
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete own_event(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    Event& event = *own_event(handle);
    // Unlike a wait, a record wants an event and a stream of one device.
    if (event.device != stream_of(stream).device) return remember(cudaErrorInvalidResourceHandle);
    const auto record = std::make_shared<Record>();
    record->work = work_so_far();
    record->mark = end_of(stream_of(stream), [record] {
        record->time = Clock::now();
        return cudaSuccess;
    });
    event.record = record;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (!is_pending(own_event(event))) return cudaSuccess;
    asked_in_vain(own_event(event)->record->mark);
    return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const auto record = own_event(event)->record;
    count_event_wait(record ? record->work : work_so_far());
    return record && late_streams_are_on ? reach(record->mark) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
    const Event *begin = own_event(first), *end = own_event(second);
    const bool timed = !((begin->flags | end->flags) & cudaEventDisableTiming);
    if (!begin->record || !end->record || !timed) return remember(cudaErrorInvalidResourceHandle);
    if (is_pending(begin) || is_pending(end)) return remember(cudaErrorNotReady);
    *milliseconds =
        std::chrono::duration<float, std::milli>(end->record->time - begin->record->time).count();
    return cudaSuccess;
}
}
