#include "counters.h"

namespace standin {
namespace {

std::atomic<uint64_t> values[kCounters];

// Python sees these names.
const char* name_of(int counter) {
    switch (counter) {
    case kHostToDeviceCopies: return "host_to_device_copies";
    case kHostToDeviceBytes: return "host_to_device_bytes";
    case kDeviceToHostCopies: return "device_to_host_copies";
    case kDeviceToHostBytes: return "device_to_host_bytes";
    case kDeviceToDeviceCopies: return "device_to_device_copies";
    case kDeviceToDeviceBytes: return "device_to_device_bytes";
    case kKernelLaunches: return "kernel_launches";
    case kLibraryCalls: return "library_calls";
    case kDeviceSynchronizations: return "device_synchronizations";
    case kStreamSynchronizations: return "stream_synchronizations";
    case kEventSynchronizations: return "event_synchronizations";
    case kBlockingCopies: return "blocking_copies";
    case kBlockingLibraryCalls: return "blocking_library_calls";
    case kHostWaits: return "host_waits";
    case kOvertakenWaits: return "overtaken_waits";
    case kAllocations: return "allocations";
    case kAllocatedBytes: return "allocated_bytes";
    case kFrees: return "frees";
    case kReleasedUnderCopies: return "released_under_copies";
    }
    return "";
}

// Was anything given to the device since the host last waited for it? CuPy copies an array to the
// host and then synchronizes the stream: that is one wait, not two.
std::atomic<bool> work_is_pending{false};

std::atomic<uint64_t> issued{0};

}  // namespace

void count(Counter counter, uint64_t amount) {
    values[counter] += amount;
    switch (counter) {
    case kHostToDeviceCopies:
    case kDeviceToHostCopies:
    case kDeviceToDeviceCopies:
        work_is_pending = true;
        break;
    case kKernelLaunches:
    case kLibraryCalls:
        work_is_pending = true;
        issued += amount;
        break;
    case kDeviceSynchronizations:
    case kStreamSynchronizations:
    case kEventSynchronizations:
    case kBlockingCopies:
    case kBlockingLibraryCalls:
        if (work_is_pending.exchange(false)) values[kHostWaits]++;
        break;
    default: break;
    }
}

uint64_t work_so_far() { return issued; }

void count_event_wait(uint64_t work_before) {
    if (issued == work_before) return count(kEventSynchronizations);
    // The device does not run dry: there is work behind what the host waits for.
    values[kEventSynchronizations]++;
    values[kOvertakenWaits]++;
}

}  // namespace standin

extern "C" {

int standin_counter_count() { return standin::kCounters; }
const char* standin_counter_name(int counter) { return standin::name_of(counter); }
uint64_t standin_counter_value(int counter) { return standin::values[counter].load(); }
void standin_reset_counters() {
    for (auto& value : standin::values)
        value = 0;
}
}
