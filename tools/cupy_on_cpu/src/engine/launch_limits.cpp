#include "launch_limits.h"

#include <cstdint>

namespace standin {
namespace {

std::string text(const Size3& size) {
    return "(" + std::to_string(size.x) + ", " + std::to_string(size.y) + ", " +
           std::to_string(size.z) + ")";
}

}  // namespace

std::string exceeded_limit(const Launch& launch, unsigned max_dynamic_shared, int launch_bound) {
    const Size3 &grid = launch.grid, &block = launch.block;
    const bool grid_fits =
        grid.x && grid.y && grid.z && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535;
    if (!grid_fits)
        return "a grid of " + text(grid) + " blocks; each must be 1 or more, y and z at most 65535";
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > kMaxThreadsPerBlock || block.z > 64)
        return "a block of " + text(block) + " threads; it must have 1 to 1024, z at most 64";
    if (launch_bound > 0 && threads > (uint64_t)launch_bound)
        return "a block of " + std::to_string(threads) + " threads; __launch_bounds__ promised " +
               std::to_string(launch_bound);
    if (launch.dynamic_shared_bytes > max_dynamic_shared)
        return std::to_string(launch.dynamic_shared_bytes) + " bytes of dynamic shared memory; " +
               std::to_string(max_dynamic_shared) + " is the limit";
    return "";
}

}  // namespace standin
