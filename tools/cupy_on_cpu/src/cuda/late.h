// Streams that run late. A GPU runs the work of a stream at some time between the call that asks
// for it and the call that waits for it. Usually the stand-in runs it at once, and so forgives
// whoever does not wait. Here it runs it as late as CUDA allows: when a synchronization, an event
// that somebody waits for, or a copy that blocks needs it.
//
// STANDIN_LATE, or standin.late_streams():
//   side       streams that a program creates run late, the default stream at once
//   default    the default stream runs late, the others at once
//   both       all run late
//   random:7   all run late, and after every call some of the work is done, drawn from the seed 7
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace standin {

struct Stream;

// A place in a stream: reached when its first `number` pieces of work are done.
struct Mark {
    Stream* stream = nullptr;
    uint64_t number = 0;
};

// Pinned memory of the host that a piece of work reads or writes.
struct HostRange {
    uintptr_t begin = 0, end = 0;
};

using Work = std::function<cudaError_t()>;

struct Task {
    Work work;
    std::vector<Mark> after;  // of other streams, to be reached first
    HostRange host;
};

enum class StreamKind { legacy, per_thread, blocking, non_blocking };

struct Stream {
    StreamKind kind;
    unsigned flags;
    int priority;
    int device;
    // The rest belongs to late.cpp.
    std::deque<Task> tasks;
    uint64_t issued = 0;
    uint64_t done = 0;
};

// The stream of a handle; 0, 1 and 2 stand for the default streams of the current device.
Stream& stream_of(cudaStream_t handle);
Stream& legacy_stream(int device);
Stream* create_stream(unsigned flags, int priority, int device);

extern std::atomic<bool> late_streams_are_on;

// Gives work to a stream that may run late.
cudaError_t enqueue(Stream& stream, Work work, HostRange host);

// Gives work to a stream. Its error comes back if it ran at once; else the next wait tells it.
template <class Function>
cudaError_t issue(Stream& stream, Function&& work, HostRange host = {}) {
    if (!late_streams_are_on) return work();
    return enqueue(stream, std::forward<Function>(work), host);
}

// Gives a last piece of work to a stream, and returns its place. At the end of the default stream,
// the blocking streams have done their work too: it waits for them.
Mark end_of(Stream& stream, Work last = [] { return cudaSuccess; });
bool is_reached(const Mark& mark);
// Lets a stream wait for a place in another one.
void wait_for(Stream& stream, const Mark& mark);

// The host waits. What failed in work that ran late comes back here, once.
cudaError_t reach(const Mark& mark);
cudaError_t finish(Stream& stream);
cudaError_t finish_device(int device);
// Everything is done before memory is freed; errors are kept for the next wait.
void run_everything();

// Somebody asks again and again whether a mark is reached: a GPU would get there in the end.
void asked_in_vain(const Mark& mark);

}  // namespace standin
