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
    kHostWaits,  // those of the five before that had something to wait for
    kAllocations,
    kAllocatedBytes,
    kFrees,
    kReleasedUnderCopies,  // pinned memory that went back to its pool too early
    kCounters
};

void count(Counter counter, uint64_t amount = 1);

}  // namespace standin
