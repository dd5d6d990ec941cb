#include "late.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include "../engine/memory_map.h"
#include "../engine/settings.h"
#include "counters.h"
#include "devices.h"

namespace standin {

std::atomic<bool> late_streams_are_on{false};

namespace {

constexpr int kMaxDevices = 64;
constexpr unsigned char kPoison = 0xFF;
constexpr int kPatience = 256;  // questions, after which a mark is reached

enum Mode { kOff = 0, kSide = 1, kDefault = 2, kBoth = 3, kRandom = 4 };

// Guards the queues, for moments only.
std::mutex& queues() {
    static auto* mutex = new std::mutex;
    return *mutex;
}

// Held while late work runs. Apart from the other, so that a thread which holds Python's lock can
// ask about an event while a host function of another thread waits for that lock.
std::recursive_mutex& running() {
    static auto* mutex = new std::recursive_mutex;
    return *mutex;
}

// With queues() held. Streams are never deleted: work may outlive them, as on a GPU.
std::vector<Stream*>& all_streams() {
    static auto* streams = new std::vector<Stream*>;
    return *streams;
}

std::atomic<int> mode{kOff};
std::mt19937 random_numbers;
std::atomic<int> errors[kMaxDevices];  // of late work, not told yet; by device
std::atomic<int> questions{0};

bool is_default(const Stream& stream) {
    return stream.kind == StreamKind::legacy || stream.kind == StreamKind::per_thread;
}

bool runs_late(const Stream& stream) {
    if (mode == kRandom) return true;
    return mode & (is_default(stream) ? kDefault : kSide);
}

// With queues() held: what CUDA lets a stream wait for without being told. The legacy stream waits
// for all blocking streams of its device, and they for it.
std::vector<Mark> waited_for(const Stream& stream) {
    std::vector<Mark> marks;
    if (stream.kind == StreamKind::non_blocking) return marks;
    for (Stream* other : all_streams()) {
        if (other == &stream || other->device != stream.device || other->tasks.empty()) continue;
        if (other->kind == StreamKind::non_blocking) continue;
        if (stream.kind == StreamKind::legacy || other->kind == StreamKind::legacy)
            marks.push_back({other, other->issued});
    }
    return marks;
}

void keep_error(const Stream& stream, cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "[standin] work that ran late failed with error %d\n", int(error));
    errors[stream.device] = error;
}

// Runs a stream up to a number; the error of the last piece of work comes back.
cudaError_t run_to(Stream& stream, uint64_t number) {
    std::lock_guard<std::recursive_mutex> lock(running());
    cudaError_t error = cudaSuccess;
    for (;;) {
        Task task;
        {
            std::lock_guard<std::mutex> guard(queues());
            if (stream.done >= number || stream.tasks.empty()) return error;
            task = std::move(stream.tasks.front());
            stream.tasks.pop_front();
        }
        keep_error(stream, error);  // of the one before
        for (const Mark& mark : task.after)
            keep_error(*mark.stream, run_to(*mark.stream, mark.number));
        error = task.work();
        task = {};  // what it held goes away before others see it done
        std::lock_guard<std::mutex> guard(queues());
        stream.done++;
    }
}

// With queues() held.
Stream* any_busy_stream() {
    std::vector<Stream*> busy;
    for (Stream* stream : all_streams())
        if (!stream->tasks.empty()) busy.push_back(stream);
    return busy.empty() ? nullptr : busy[random_numbers() % busy.size()];
}

void run_some() {
    std::lock_guard<std::recursive_mutex> lock(running());
    for (;;) {
        Stream* stream;
        uint64_t next;
        {
            std::lock_guard<std::mutex> guard(queues());
            stream = random_numbers() % 2 ? any_busy_stream() : nullptr;
            if (!stream) return;
            next = stream->done + 1;
        }
        keep_error(*stream, run_to(*stream, next));
    }
}

// -1 stands for every device.
void run_all(int device) {
    std::vector<Mark> ends;
    {
        std::lock_guard<std::mutex> guard(queues());
        for (Stream* stream : all_streams())
            if (device < 0 || stream->device == device) ends.push_back({stream, stream->issued});
    }
    for (const Mark& end : ends)
        keep_error(*end.stream, run_to(*end.stream, end.number));
}

cudaError_t told_error(int device) {
    return remember(static_cast<cudaError_t>(errors[device].exchange(0)));
}

Stream* new_stream(StreamKind kind, unsigned flags, int priority, int device) {
    auto* stream = new Stream{kind, flags, priority, device, {}};
    std::lock_guard<std::mutex> guard(queues());
    all_streams().push_back(stream);
    return stream;
}

int mode_of(const std::string& name) {
    if (name.empty() || name == "off") return kOff;
    if (name == "side") return kSide;
    if (name == "default") return kDefault;
    if (name == "both") return kBoth;
    return name.compare(0, 7, "random:") == 0 ? kRandom : -1;
}

std::string& mode_name() {
    static auto* name = new std::string("off");
    return *name;
}

bool set_mode(const std::string& name) {
    const int chosen = mode_of(name);
    if (chosen < 0) return false;
    run_everything();
    if (chosen == kRandom) random_numbers.seed(atoi(name.c_str() + 7));
    mode = chosen;
    late_streams_are_on = chosen != kOff;
    mode_name() = name.empty() ? "off" : name;
    return true;
}

const bool set_by_environment = [] {
    const std::string name = text_setting("STANDIN_LATE");
    if (set_mode(name)) return true;
    fprintf(stderr, "[standin] STANDIN_LATE=%s; write side, default, both, or random:7\n",
            name.c_str());
    abort();
}();

}  // namespace

Stream& legacy_stream(int device) {
    static std::mutex mutex;
    static auto* streams = new std::map<int, Stream*>;
    std::lock_guard<std::mutex> lock(mutex);
    Stream*& stream = (*streams)[device];
    if (!stream) stream = new_stream(StreamKind::legacy, 0, 0, device);
    return *stream;
}

Stream* create_stream(unsigned flags, int priority, int device) {
    const bool alone = flags & cudaStreamNonBlocking;
    return new_stream(alone ? StreamKind::non_blocking : StreamKind::blocking, flags, priority,
                      device);
}

Stream& stream_of(cudaStream_t handle) {
    if (handle == cudaStreamPerThread) {
        static thread_local std::map<int, Stream*> own;
        Stream*& stream = own[current_device()];
        if (!stream) stream = new_stream(StreamKind::per_thread, 0, 0, current_device());
        return *stream;
    }
    if (handle == nullptr || handle == cudaStreamLegacy) return legacy_stream(current_device());
    return *reinterpret_cast<Stream*>(handle);
}

cudaError_t enqueue(Stream& stream, Work work, HostRange host) {
    uint64_t number;
    {
        std::lock_guard<std::mutex> guard(queues());
        stream.tasks.push_back({std::move(work), waited_for(stream), host});
        number = ++stream.issued;
    }
    if (mode == kRandom) run_some();
    return runs_late(stream) ? cudaSuccess : run_to(stream, number);
}

Mark end_of(Stream& stream, Work last) {
    issue(stream, std::move(last));
    std::lock_guard<std::mutex> guard(queues());
    return {&stream, stream.issued};
}

bool is_reached(const Mark& mark) {
    if (!mark.stream) return true;
    std::lock_guard<std::mutex> guard(queues());
    return mark.stream->done >= mark.number || mark.stream->tasks.empty();
}

void wait_for(Stream& stream, const Mark& mark) {
    if (is_reached(mark)) return;
    issue(stream, [mark] {
        keep_error(*mark.stream, run_to(*mark.stream, mark.number));
        return cudaSuccess;
    });
}

cudaError_t reach(const Mark& mark) {
    if (!mark.stream) return cudaSuccess;
    keep_error(*mark.stream, run_to(*mark.stream, mark.number));
    return told_error(mark.stream->device);
}

cudaError_t finish(Stream& stream) {
    if (!late_streams_are_on) return cudaSuccess;
    return reach(end_of(stream));
}

cudaError_t finish_device(int device) {
    if (!late_streams_are_on) return cudaSuccess;
    run_all(device);
    return told_error(device);
}

void run_everything() {
    if (late_streams_are_on) run_all(-1);
}

void asked_in_vain(const Mark& mark) {
    if (++questions % kPatience) return;
    // Whoever asks may hold Python's lock, which the work that runs now may want: never wait here.
    std::unique_lock<std::recursive_mutex> lock(running(), std::try_to_lock);
    if (lock.owns_lock()) keep_error(*mark.stream, run_to(*mark.stream, mark.number));
}

}  // namespace standin

using namespace standin;

extern "C" {

// ---- for standin.py

// 0 if there is no such mode.
int standin_set_late(const char* name) { return set_mode(name); }

const char* standin_late() { return mode_name().c_str(); }

// Pooled device memory changed hands: from here on, in the order of the stream that the pool keeps
// it for, whoever had it before or gets it next may write to it.
void standin_poison_device(void* address, size_t bytes, void* handle, int device) {
    if (!late_streams_are_on) return;
    auto* given = static_cast<cudaStream_t>(handle);
    Stream& stream = given ? stream_of(given) : legacy_stream(device);
    issue(stream, [=] {
        // Its pool may have given it back to the device since.
        const auto region = find_region(address);
        if (region && region->holds(reinterpret_cast<uintptr_t>(address), bytes))
            memset(address, kPoison, bytes);
        return cudaSuccess;
    });
}

// Pinned memory went back to its pool: the next owner may write to it from now on, and no copy may
// still be under way. Returns the number of those that are.
int standin_poison_pinned(void* address, size_t bytes) {
    if (!late_streams_are_on) return 0;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address), end = begin + bytes;
    int under_way = 0;
    {
        std::lock_guard<std::mutex> guard(queues());
        for (const Stream* stream : all_streams())
            for (const Task& task : stream->tasks)
                under_way += task.host.begin < end && begin < task.host.end;
    }
    if (under_way) {
        count(kReleasedUnderCopies, under_way);
        fprintf(stderr, "[standin] pinned memory of %zu bytes released under %d copies\n", bytes,
                under_way);
    }
    memset(address, kPoison, bytes);
    return under_way;
}
}
