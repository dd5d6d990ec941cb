// Counts of what crosses the border between host and device, for tests with a budget.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace standin {

enum Counter {
    kHostToDeviceCopies,
    kHostToDeviceBytes,
    kDeviceToHostCopies,
    kDeviceToHostBytes,
    kDeviceToDeviceCopies,
    kDeviceToDeviceBytes,
    kKernelLaunches,
    kLibraryCalls,
    kDeviceSynchronizations,
    kStreamSynchronizations,
    kEventSynchronizations,
    kBlockingCopies,
    kBlockingLibraryCalls,
    kHostWaits,  // those of the five before that had something to wait for, and nothing behind it
    kOvertakenWaits,  // events that were waited for while the device had more to do
    kAllocations,
    kAllocatedBytes,
    kFrees,
    kReleasedUnderCopies,  // pinned memory that went back to its pool too early
    kCounters
};

void count(Counter counter, uint64_t amount = 1);

// Kernels and library calls that were issued since the process began.
uint64_t work_so_far();

// Counts a wait for an event, given the work that had been issued when it was recorded.
void count_event_wait(uint64_t work_before);

}  // namespace standin
