// Checks of single loads and stores, in kernels that were compiled with bounds checks.
//
// g++ -fsanitize=kernel-address with a call threshold of 0 turns every load and store into a call
// of
// __asan_load<bytes>_noabort or __asan_store<bytes>_noabort, and leaves those functions to the
// program. So the checks need neither AddressSanitizer's runtime nor its shadow memory, know the
// allocations exactly, and agree with fibers.
#include <dlfcn.h>
#include <link.h>

#include <map>
#include <mutex>
#include <string>

#include "executor.h"
#include "memory_map.h"

namespace {

using standin::Outcome;
using standin::Region;

// What g++ passes for every global and every __shared__ variable of a module.
struct CompilerGlobal {
    uintptr_t begin;
    uintptr_t bytes;
    uintptr_t bytes_with_red_zone;
    const char* name;
    const char* module;
    uintptr_t has_dynamic_initializer;
    void* location;
    uintptr_t odr_indicator;
};

std::mutex globals_mutex;
// By begin. Never destroyed: modules unregister their variables when the process is about to end.
std::map<uintptr_t, CompilerGlobal>& globals = *new std::map<uintptr_t, CompilerGlobal>;

std::string bytes_text(size_t bytes) { return std::to_string(bytes) + " bytes"; }

// Names the variable if an address lies in the red zone behind it.
std::string variable_overrun(uintptr_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(globals_mutex);
    auto after = globals.upper_bound(address);
    if (after == globals.begin()) return "";
    const CompilerGlobal& variable = std::prev(after)->second;
    const uintptr_t end = variable.begin + variable.bytes;
    const uintptr_t zone_end = variable.begin + variable.bytes_with_red_zone;
    if (address + bytes <= end || address >= zone_end) return "";
    return "past the end of the variable '" + std::string(variable.name) + "' of " +
           bytes_text(variable.bytes);
}

// Constants and __device__ variables lie in a loaded library.
bool in_loaded_library(uintptr_t address) {
    Dl_info info;
    return dladdr(reinterpret_cast<void*>(address), &info) != 0;
}

std::string place_text(uintptr_t address) {
    auto region = standin::nearest_region(address);
    if (!region) return "outside of any allocation";
    const std::string owner = " of an allocation of " + bytes_text(region->bytes);
    if (address >= region->end())
        return bytes_text(address - region->end()) + " past the end" + owner;
    if (address < region->begin)
        return bytes_text(region->begin - address) + " before the begin" + owner;
    return "across the end" + owner;
}

void check_region(const Region& region, const char* verb) {
    if (region.kind == standin::MemoryKind::device && region.device != standin::running_device())
        standin::stop_kernel(Outcome::illegal_address,
                             std::string(verb) + " memory of device " +
                                 std::to_string(region.device) + " on device " +
                                 std::to_string(standin::running_device()));
}

void check(uintptr_t address, size_t bytes, const char* verb) {
    if (!standin::inside_kernel() || bytes == 0) return;
    if (standin::on_running_stack(address) || standin::is_builtin_variable(address)) return;
    if (standin::in_dynamic_shared(address, bytes)) return;
    auto region = standin::find_region(reinterpret_cast<void*>(address));
    if (region && region->holds(address, bytes)) return check_region(*region, verb);
    std::string place;
    if (!region && (standin::in_static_shared(address) || in_loaded_library(address))) {
        place = variable_overrun(address, bytes);
        if (place.empty()) return;
    }
    if (place.empty()) place = place_text(address);
    standin::stop_kernel(Outcome::illegal_address,
                         std::string(verb) + " " + bytes_text(bytes) + " " + place);
}

}  // namespace

extern "C" {

#define STANDIN_CHECKS(bytes)                                                                \
    void __asan_load##bytes##_noabort(uintptr_t address) { check(address, bytes, "reads"); } \
    void __asan_store##bytes##_noabort(uintptr_t address) { check(address, bytes, "writes"); }
STANDIN_CHECKS(1)
STANDIN_CHECKS(2)
STANDIN_CHECKS(4)
STANDIN_CHECKS(8)
STANDIN_CHECKS(16)
#undef STANDIN_CHECKS

void __asan_loadN_noabort(uintptr_t address, size_t bytes) { check(address, bytes, "reads"); }
void __asan_storeN_noabort(uintptr_t address, size_t bytes) { check(address, bytes, "writes"); }
void __asan_handle_no_return() {}

void __asan_register_globals(CompilerGlobal* first, uintptr_t count) {
    std::lock_guard<std::mutex> lock(globals_mutex);
    for (uintptr_t i = 0; i < count; i++)
        globals[first[i].begin] = first[i];
}

void __asan_unregister_globals(CompilerGlobal* first, uintptr_t count) {
    std::lock_guard<std::mutex> lock(globals_mutex);
    for (uintptr_t i = 0; i < count; i++)
        globals.erase(first[i].begin);
}
}
