#include "executor.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "../device/standin_vector_types.h"
#include "fibers.h"
#include "settings.h"

// CUDA's built-in variables, as kernels see them: those of the running thread.
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace standin {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kWarp = 32;
constexpr unsigned char kPoison = 0xFF;  // reads as NaN, or as -1

enum class State : uint8_t { fresh, ready, at_barrier, at_warp_sync, ended };

struct Thread {
    Fiber* fiber;
    uint3 index;
    unsigned warp_mask;  // the lanes it waits for, at a warp sync
    unsigned met;        // those of them that had not ended, when it last opened
    const char* file;    // where it waits, at a barrier
    int line;
};

// The block that is running. One launch runs at a time: launch_mutex.
std::mutex launch_mutex;
const Launch* launch;
Thread threads[kMaxThreads];
State states[kMaxThreads];  // beside the threads: every round looks at all of them
int alive, at_barrier, at_warp_sync;  // how many threads have not ended, and wait
uint64_t lane_values[kMaxThreads];    // what each thread hands in to a warp intrinsic
uint64_t met_values[kMaxThreads];     // the same, of lanes that have met
int thread_count;
int schedule[kMaxThreads];  // thread numbers, in the order in which they run
int next_in_schedule;       // threads before it had their turn in this round
int current;                // number of the running thread
Fiber* running_fiber;
void* scheduler_stack;
int barrier_votes, barrier_result;
std::vector<char> shared_storage;
char* dynamic_shared;
bool running = false;
LaunchResult failure;
std::mt19937 shuffler;
std::atomic<int64_t> only_block{-1};

std::string place(const char* file, int line) {
    return std::string(file) + ":" + std::to_string(line);
}

std::string thread_name() {
    auto triple = [](unsigned x, unsigned y, unsigned z) {
        return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
    };
    return "thread " + triple(threadIdx.x, threadIdx.y, threadIdx.z) + " of block " +
           triple(blockIdx.x, blockIdx.y, blockIdx.z);
}

void make_current(int thread) {
    current = thread;
    threadIdx = threads[thread].index;
}

int next_thread() {
    while (next_in_schedule < thread_count) {
        const int thread = schedule[next_in_schedule++];
        if (states[thread] == State::fresh || states[thread] == State::ready) return thread;
    }
    return -1;
}

void to_scheduler() { standin_switch_stack(&running_fiber->stack_pointer, scheduler_stack); }

void fiber_body();

// Runs a thread on its fiber; whoever calls this goes on when somebody switches back to it.
void resume(int thread, void** save) {
    make_current(thread);
    if (states[thread] == State::fresh) threads[thread].fiber = take_fiber(fiber_body);
    running_fiber = threads[thread].fiber;
    standin_switch_stack(save, running_fiber->stack_pointer);
}

// Straight from thread to thread: by way of the scheduler, there would be twice as many switches.
void to_next_thread(int next) {
    if (next >= 0)
        resume(next, &running_fiber->stack_pointer);
    else
        to_scheduler();
}

// A thread that ends without having waited lends its fiber to the next one, so that kernels without
// barriers run at the speed of a loop.
void fiber_body() {
    for (;;) {
        launch->entry(launch->arguments);
        states[current] = State::ended;
        alive--;
        threads[current].fiber = nullptr;
        const int next = next_thread();
        if (next >= 0 && states[next] == State::fresh) {
            make_current(next);
            threads[next].fiber = running_fiber;
            continue;
        }
        give_back_fiber(running_fiber);
        to_next_thread(next);
    }
}

void wait_as(State state) {
    states[current] = state;
    to_next_thread(next_thread());
}

bool failed() { return failure.outcome != Outcome::finished; }

void order_threads() {
    std::iota(schedule, schedule + thread_count, 0);
    if (launch->order == 1) std::reverse(schedule, schedule + thread_count);
    if (launch->order > 1) std::shuffle(schedule, schedule + thread_count, shuffler);
}

// The barrier opens once every thread of the block waits at it or has ended.
bool open_block_barrier() {
    if (!at_barrier || at_barrier != alive) return false;
    const Thread* first = nullptr;
    for (int i = 0; i < thread_count; i++) {
        if (states[i] != State::at_barrier) continue;
        const Thread& thread = threads[i];
        if (!first) first = &thread;
        if (thread.line != first->line || strcmp(thread.file, first->file) != 0) {
            failure = {Outcome::deadlock, "threads of one block wait at different barriers: " +
                                              place(first->file, first->line) + " and " +
                                              place(thread.file, thread.line)};
            return false;
        }
        states[i] = State::ready;
    }
    at_barrier = 0;
    barrier_result = barrier_votes;
    barrier_votes = 0;
    return true;
}

// The lanes of a mask that wait for each other; none, if one of them is elsewhere.
unsigned lanes_together(int first, int lanes, unsigned mask) {
    unsigned together = 0;
    for (int lane = 0; lane < lanes; lane++) {
        if (!(mask >> lane & 1) || states[first + lane] == State::ended) continue;
        if (states[first + lane] != State::at_warp_sync) return 0;
        if (threads[first + lane].warp_mask != mask) return 0;
        together |= 1u << lane;
    }
    return together;
}

bool open_warp_syncs() {
    bool opened = false;
    for (int i = 0; at_warp_sync && i < thread_count; i++) {
        if (states[i] != State::at_warp_sync) continue;
        const int first = i - i % kWarp, lanes = std::min(kWarp, thread_count - first);
        const unsigned mask = threads[i].warp_mask;
        const unsigned together = lanes_together(first, lanes, mask);
        if (!together) continue;
        for (int lane = 0; lane < lanes; lane++) {
            if (!(mask >> lane & 1)) continue;
            // Kept apart: the first lane to go on may hand in its next value before others read.
            met_values[first + lane] = lane_values[first + lane];
            if (!(together >> lane & 1)) continue;
            threads[first + lane].met = together;
            states[first + lane] = State::ready;
            at_warp_sync--;
        }
        opened = true;
    }
    return opened;
}

std::string where_threads_wait() {
    std::string places;
    for (int i = 0; i < thread_count; i++) {
        if (states[i] != State::at_barrier) continue;
        const std::string name = " " + place(threads[i].file, threads[i].line);
        if (places.find(name) == std::string::npos) places += name;
    }
    std::string text = "threads of one block wait for each other forever:";
    if (at_warp_sync) text += " " + std::to_string(at_warp_sync) + " at a warp intrinsic;";
    return text + (places.empty() ? " none at a barrier" : " some at the barrier" + places);
}

void run_block() {
    std::fill(states, states + thread_count, State::fresh);
    alive = thread_count;
    at_barrier = at_warp_sync = 0;
    // Lanes that the last warp lacks included: they vote for nothing.
    const int lanes = (thread_count + kWarp - 1) / kWarp * kWarp;
    memset(lane_values, 0, sizeof(uint64_t) * lanes);
    memset(met_values, 0, sizeof(uint64_t) * lanes);
    barrier_votes = 0;
    order_threads();
    for (;;) {
        next_in_schedule = 0;
        const int first = next_thread();
        if (first >= 0) resume(first, &scheduler_stack);
        if (failed() || !alive) return;
        bool progress = open_block_barrier();
        if (failed()) return;
        progress |= open_warp_syncs();
        if (!progress) {
            failure = {Outcome::deadlock, where_threads_wait()};
            return;
        }
        if (launch->order > 1) order_threads();
    }
}

void poison_shared_memory() {
    if (launch->dynamic_shared_bytes) memset(dynamic_shared, kPoison, launch->dynamic_shared_bytes);
    if (launch->static_shared_begin)
        memset(launch->static_shared_begin, kPoison,
               launch->static_shared_end - launch->static_shared_begin);
}

// Visits all blocks: forward, backward, or with a random stride that reaches every block once.
class BlockOrder {
  public:
    BlockOrder(uint64_t count, int order) : count_(count), order_(order) {
        if (order <= 1) return;
        offset_ = shuffler() % count;
        stride_ = shuffler() % count | 1;
        while (std::gcd(stride_, count) != 1)
            stride_++;
    }
    uint64_t operator[](uint64_t step) const {
        if (order_ == 0) return step;
        if (order_ == 1) return count_ - 1 - step;
        return (unsigned __int128)(step + offset_) * stride_ % count_;
    }

  private:
    uint64_t count_, stride_ = 1, offset_ = 0;
    int order_;
};

void run_blocks() {
    const Size3& grid = launch->grid;
    const uint64_t count = (uint64_t)grid.x * grid.y * grid.z;
    const BlockOrder order(count, launch->order);
    const int64_t only = only_block;
    for (uint64_t step = 0; step < count && !failed(); step++) {
        const uint64_t block = order[step];
        if (only >= 0 && block % grid.x != uint64_t(only)) continue;
        blockIdx = {unsigned(block % grid.x), unsigned(block / grid.x % grid.y),
                    unsigned(block / grid.x / grid.y)};
        poison_shared_memory();
        run_block();
    }
}

void place_threads(const Size3& block) {
    thread_count = block.x * block.y * block.z;
    for (unsigned i = 0; i < (unsigned)thread_count; i++)
        threads[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
}

}  // namespace

LaunchResult run_grid(const Launch& request) {
    std::lock_guard<std::mutex> lock(launch_mutex);
    launch = &request;
    failure = {Outcome::finished, ""};
    shuffler.seed(request.order);
    blockDim = dim3(request.block.x, request.block.y, request.block.z);
    gridDim = dim3(request.grid.x, request.grid.y, request.grid.z);
    place_threads(request.block);
    shared_storage.resize(request.dynamic_shared_bytes + 256);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(shared_storage.data());
    dynamic_shared = reinterpret_cast<char*>((begin + 127) & ~uintptr_t(127));
    running = true;
    run_blocks();
    running = false;
    if (failed()) restart_all_fibers(fiber_body);
    return failure;
}

bool inside_kernel() { return running; }
int running_device() { return launch->device; }

bool on_running_stack(uintptr_t address) {
    return address >= reinterpret_cast<uintptr_t>(running_fiber->stack_begin) &&
           address < reinterpret_cast<uintptr_t>(running_fiber->stack_end);
}

bool in_dynamic_shared(uintptr_t address, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(dynamic_shared);
    return address >= begin && address + bytes <= begin + launch->dynamic_shared_bytes;
}

bool in_static_shared(uintptr_t address) {
    return address >= reinterpret_cast<uintptr_t>(launch->static_shared_begin) &&
           address < reinterpret_cast<uintptr_t>(launch->static_shared_end);
}

bool is_builtin_variable(uintptr_t address) {
    auto inside = [address](const auto& variable) {
        const uintptr_t begin = reinterpret_cast<uintptr_t>(&variable);
        return address >= begin && address < begin + sizeof variable;
    };
    return inside(threadIdx) || inside(blockIdx) || inside(blockDim) || inside(gridDim);
}

void stop_kernel(Outcome outcome, const std::string& what) {
    failure = {outcome, what + ", " + thread_name()};
    to_scheduler();
    abort();  // a stopped thread is never resumed
}

}  // namespace standin

// ---- what kernels call (declared in device/standin_device.h)

using namespace standin;

extern "C" {

// For standin.py: only blocks of this x run, all with -1. Returns the number before.
int64_t standin_set_only_block(int64_t number) { return only_block.exchange(number); }

void standin_barrier(const char* file, int line) {
    threads[current].file = file;
    threads[current].line = line;
    at_barrier++;
    wait_as(State::at_barrier);
}

int standin_barrier_count(const char* file, int line, int predicate) {
    barrier_votes += predicate;
    standin_barrier(file, line);
    return barrier_result;
}

void standin_warp_sync(unsigned mask) {
    threads[current].warp_mask = mask;
    at_warp_sync++;
    wait_as(State::at_warp_sync);
}

uint64_t* standin_warp_gather(unsigned mask, uint64_t value) {
    if (!(mask >> (current % kWarp) & 1))
        stop_kernel(Outcome::deadlock, "a lane outside the mask of its warp intrinsic");
    lane_values[current] = value;
    standin_warp_sync(mask);
    return met_values + (current - current % kWarp);
}

unsigned standin_gathered_lanes() { return threads[current].met; }

uint64_t standin_warp_read(unsigned mask, uint64_t value, int source) {
    uint64_t* values = standin_warp_gather(mask, value);
    const int lane = current % kWarp;
    const bool present = source >= 0 && source < kWarp && (mask >> source & 1) &&
                         current - lane + source < thread_count;
    return values[present ? source : lane];
}

unsigned standin_active_lanes() {
    const int first = current - current % kWarp;
    unsigned lanes = 0;
    for (int lane = 0; lane < kWarp && first + lane < thread_count; lane++)
        if (states[first + lane] != State::ended) lanes |= 1u << lane;
    return lanes;
}

int standin_lane() { return current % kWarp; }

void* standin_dynamic_shared() { return dynamic_shared; }

void standin_fail(const char* what, const char* file, int line) {
    stop_kernel(Outcome::assertion, std::string(what) + " failed at " + place(file, line));
    abort();
}
}
