#include "memory_map.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "settings.h"

namespace standin {
namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kRedZone = 512;
constexpr unsigned char kPoison = 0xFF;
// Unlike the poison, so that a kernel which copies poison into a red zone is noticed. As a float it
// is about -1e34, so a read of it shows in any result.
constexpr unsigned char kRedByte = 0xF7;

std::mutex mutex;
// By begin. Never destroyed: memory may be freed when the process is about to end.
std::map<uintptr_t, Region>& regions = *new std::map<uintptr_t, Region>;

char* front_zone(const Region& region) { return reinterpret_cast<char*>(region.begin) - kRedZone; }
char* back_zone(const Region& region) { return reinterpret_cast<char*>(region.end()); }

void paint(const Region& region) {
    memset(front_zone(region), kRedByte, kRedZone);
    memset(back_zone(region), kRedByte, kRedZone);
}

// The number of bytes that changed in a zone.
size_t changed_bytes(const char* zone) {
    static const std::string clean(kRedZone, static_cast<char>(kRedByte));
    if (memcmp(zone, clean.data(), kRedZone) == 0) return 0;
    size_t changed = 0;
    for (size_t i = 0; i < kRedZone; i++)
        changed += static_cast<unsigned char>(zone[i]) != kRedByte;
    return changed;
}

std::string damage_of(const Region& region) {
    const size_t before = changed_bytes(front_zone(region)),
                 after = changed_bytes(back_zone(region));
    if (!before && !after) return "";
    return "wrote " + std::to_string(before ? before : after) + " bytes " +
           (before ? "before the begin" : "past the end") + " of an allocation of " +
           std::to_string(region.bytes) + " bytes";
}

std::map<uintptr_t, Region>::iterator at_or_before(uintptr_t address) {
    auto after = regions.upper_bound(address);
    return after == regions.begin() ? regions.end() : std::prev(after);
}

}  // namespace

void* allocate_region(size_t bytes, MemoryKind kind, int device) {
    const size_t total = (kRedZone + bytes + kRedZone + kAlignment - 1) / kAlignment * kAlignment;
    char* memory = static_cast<char*>(aligned_alloc(kAlignment, total));
    if (!memory) return nullptr;
    static const bool poison = integer_setting("STANDIN_POISON", 1) != 0;
    char* begin = memory + kRedZone;
    memset(begin, poison ? kPoison : 0, bytes);
    const Region region{reinterpret_cast<uintptr_t>(begin), bytes, kind, device};
    paint(region);
    std::lock_guard<std::mutex> lock(mutex);
    regions[region.begin] = region;
    return begin;
}

std::optional<Region> free_region(void* address) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = regions.find(reinterpret_cast<uintptr_t>(address));
    if (found == regions.end()) return std::nullopt;
    const Region region = found->second;
    regions.erase(found);
    free(front_zone(region));
    return region;
}

std::optional<Region> find_region(const void* pointer) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex);
    auto found = at_or_before(address);
    if (found == regions.end() || !found->second.holds(address, 1)) return std::nullopt;
    return found->second;
}

std::optional<Region> nearest_region(uintptr_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    auto after = regions.upper_bound(address);
    auto before = at_or_before(address);
    if (before == regions.end() && after == regions.end()) return std::nullopt;
    if (after == regions.end()) return before->second;
    if (before == regions.end()) return after->second;
    const bool nearer_before = address - before->second.end() < after->second.begin - address;
    return nearer_before ? before->second : after->second;
}

size_t bytes_in_use(int device) {
    std::lock_guard<std::mutex> lock(mutex);
    size_t total = 0;
    for (const auto& [begin, region] : regions)
        if (region.kind != MemoryKind::pinned && region.device == device) total += region.bytes;
    return total;
}

std::string find_damage() {
    std::lock_guard<std::mutex> lock(mutex);
    std::string first;
    for (const auto& [begin, region] : regions) {
        const std::string damage = damage_of(region);
        if (damage.empty()) continue;
        if (first.empty()) first = damage;
        paint(region);
    }
    return first;
}

}  // namespace standin
