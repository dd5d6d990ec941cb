// Warp shuffles, votes and reductions: each lane hands in a value and waits for the lanes of its
// mask.
#pragma once

namespace standin {

template <class T>
inline uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
inline T from_bits(uint64_t bits) {
    T value;
    memcpy((void*)&value, &bits, sizeof value);
    return value;
}

template <class T>
inline T read_lane(unsigned mask, T value, int source) {
    return from_bits<T>(standin_warp_read(mask, to_bits(value), source));
}

// Reduces the values of the lanes in the mask that are still running.
template <class Combine>
inline unsigned reduce_lanes(unsigned mask, unsigned value, Combine combine) {
    uint64_t* values = standin_warp_gather(mask, value);
    const unsigned present = standin_gathered_lanes();
    const int own = standin_lane();
    unsigned result = value;
    for (int lane = 0; lane < 32; lane++)
        if (lane != own && (present >> lane & 1)) result = combine(result, (unsigned)values[lane]);
    return result;
}

}  // namespace standin

inline void __syncwarp(unsigned mask = 0xffffffffu) { standin_warp_sync(mask); }
inline unsigned __activemask() { return standin_active_lanes(); }

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int lane = standin_lane();
    return standin::read_lane(mask, value, (lane / width) * width + (source & (width - 1)));
}

template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = standin_lane(), source = lane + (int)delta;
    return standin::read_lane(mask, value, source < (lane / width + 1) * width ? source : lane);
}

template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = standin_lane(), source = lane - (int)delta;
    return standin::read_lane(mask, value, source >= (lane / width) * width ? source : lane);
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    const int lane = standin_lane(), source = lane ^ lane_mask;
    return standin::read_lane(mask, value, source < (lane / width + 1) * width ? source : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    // Values 1 and 2, because a lane that has ended leaves 0.
    uint64_t* votes = standin_warp_gather(mask, predicate ? 2 : 1);
    unsigned result = 0;
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) && votes[lane] == 2) result |= 1u << lane;
    return result;
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
    const uint64_t bits = standin::to_bits(value);
    uint64_t* values = standin_warp_gather(mask, bits);
    const unsigned present = standin_gathered_lanes();
    unsigned result = 0;
    for (int lane = 0; lane < 32; lane++)
        if ((present >> lane & 1) && values[lane] == bits) result |= 1u << lane;
    return result;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
    return standin::reduce_lanes(mask, value, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
    return standin::reduce_lanes(mask, value, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
    return standin::reduce_lanes(mask, value, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
    return standin::reduce_lanes(mask, value, [](unsigned a, unsigned b) { return b < a ? b : a; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    return standin::reduce_lanes(mask, value, [](unsigned a, unsigned b) { return a < b ? b : a; });
}
