// All memory that the stand-in handed out, with a red zone on either side of every piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace standin {

// The numbers are those of cudaMemoryType.
enum class MemoryKind { unregistered = 0, pinned = 1, device = 2, managed = 3 };

struct Region {
    uintptr_t begin;
    size_t bytes;
    MemoryKind kind;
    int device;

    uintptr_t end() const { return begin + bytes; }
    bool holds(uintptr_t address, size_t count) const {
        return address >= begin && address + count <= end();
    }
};

// Memory aligned to 512 bytes, as CUDA's, and filled with a poison that reads as NaN or -1.
// Null if the host has none left.
void* allocate_region(size_t bytes, MemoryKind kind, int device);
// What was freed, or nothing if the address does not begin a region.
std::optional<Region> free_region(void* address);

// The region that holds an address.
std::optional<Region> find_region(const void* address);
// The region that ends nearest before an address, or begins nearest after it.
std::optional<Region> nearest_region(uintptr_t address);

// Bytes of device and managed memory that are handed out on one device.
size_t bytes_in_use(int device);

// Writes into red zones since the last call: empty, or a sentence. Mends the red zones.
std::string find_damage();

}  // namespace standin
