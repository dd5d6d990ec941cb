// Which rows of a dense matrix a sparse product finds in L1, in L2, or not at all: its address stream
// on one graph, replayed through caches that drop what was used longest ago.
//
//   gpu_replay INDPTR INDICES ROWS KEYS MULTIPROCESSORS BLOCKS ROWS_AT_ONCE VISIT TURN ONE_VISIT
//              ROWS_PER_UNIT L1_UNITS L2_UNITS OWN
//
// INDPTR (int64) and INDICES (int32) are raw files. Every multiprocessor has BLOCKS blocks at a time.
// A block works on ROWS_AT_ONCE rows side by side, TURN entries of each in a turn, and on VISIT
// consecutive rows one after another. ONE_VISIT 1: then the hardware gives the multiprocessor the
// next block; 0: the block stays, and goes on with a stride of the grid. In every turn each row moves
// with a chance of 7 in 8, so that rows, blocks and multiprocessors drift apart as they do in life.
// OWN 1: a row of the dense matrix with the row's own number is read at its end, as laplacian_step
// does. Prints what was read, found in L1, and found in L2, in units.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// The last `capacity` keys that were used. Open hashing with linear probing; a list from new to old.
class Cache {
    std::vector<int> key, before, after, table;
    unsigned mask;
    int capacity, used = 0, newest = -1, oldest = -1;

    unsigned home(int wanted) const { return (unsigned)wanted * 2654435761u & mask; }
    int& place(int wanted)
    {
        unsigned at = home(wanted);
        while (table[at] >= 0 && key[table[at]] != wanted) at = (at + 1) & mask;
        return table[at];
    }
    void forget(int gone)
    {
        unsigned hole = (unsigned)(&place(gone) - table.data()), at = hole;
        for (;;) {
            at = (at + 1) & mask;
            if (table[at] < 0) break;
            const unsigned start = home(key[table[at]]);
            const bool stays = hole <= at ? hole < start && start <= at : hole < start || start <= at;
            if (stays) continue;
            table[hole] = table[at];
            hole = at;
        }
        table[hole] = -1;
    }
    void unlink(int slot)
    {
        (before[slot] >= 0 ? after[before[slot]] : newest) = after[slot];
        (after[slot] >= 0 ? before[after[slot]] : oldest) = before[slot];
    }
    void put_first(int slot)
    {
        before[slot] = -1, after[slot] = newest;
        (newest >= 0 ? before[newest] : oldest) = slot;
        newest = slot;
    }

public:
    explicit Cache(int units) : capacity(units > 1 ? units : 1)
    {
        unsigned size = 4;
        while (size < 3u * capacity) size *= 2;
        mask = size - 1;
        table.assign(size, -1);
        key.assign(capacity, -1), before.assign(capacity, -1), after.assign(capacity, -1);
    }
    bool has(int wanted)
    {
        int slot = place(wanted);
        if (slot >= 0) {
            if (slot != newest) unlink(slot), put_first(slot);
            return true;
        }
        if (used < capacity) {
            slot = used++;
        } else {
            slot = oldest;
            unlink(slot);
            forget(key[slot]);
        }
        key[slot] = wanted;
        place(wanted) = slot;
        put_first(slot);
        return false;
    }
};

template <class T> static std::vector<T> contents(const char* path)
{
    FILE* file = fopen(path, "rb");
    if (!file) exit(2);
    fseek(file, 0, SEEK_END);
    std::vector<T> values(ftell(file) / sizeof(T));
    rewind(file);
    if (fread(values.data(), sizeof(T), values.size(), file) != values.size()) exit(2);
    fclose(file);
    return values;
}

struct Line {      // one row of a block's rows at a time: where it is in its visit
    int64_t row, last, entry;
};

int main(int, char** word)
{
    const auto indptr = contents<int64_t>(word[1]);
    const auto indices = contents<int>(word[2]);
    const int64_t rows = atoll(word[3]);
    const int sms = atoi(word[5]), blocks = atoi(word[6]), at_once = atoi(word[7]);
    const int64_t visit = atoll(word[8]);
    const int turn = atoi(word[9]), one_visit = atoi(word[10]), per_unit = atoi(word[11]);
    const int own = atoi(word[14]);
    std::vector<Cache> l1(sms, Cache(atoi(word[12])));
    Cache l2(atoi(word[13]));

    const int64_t visits = (rows + visit - 1) / visit, resident = (int64_t)sms * blocks;
    std::vector<int64_t> number(resident);
    std::vector<Line> lines(resident * at_once);
    std::vector<int> busy(resident, 0);
    int64_t next = 0, left = 0, read = 0, in_l1 = 0, in_l2 = 0;
    auto begin = [&](int64_t slot, int64_t block) {
        number[slot] = block;
        if (block >= visits) return;
        const int64_t first = block * visit;
        const int64_t last = first + visit < rows ? first + visit : rows;
        for (int j = 0; j < at_once; ++j) {
            Line& line = lines[slot * at_once + j];
            line = {first + j, last, first + j < last ? indptr[first + j] : 0};
            if (line.row < last) ++busy[slot], ++left;
        }
    };
    // Block b begins on multiprocessor b % sms: slots are numbered by multiprocessor.
    for (int64_t block = 0; block < resident; ++block)
        begin(block % sms * blocks + block / sms, next++);
    auto touch = [&](int64_t sm, int64_t wanted) {
        const int unit = (int)(wanted / per_unit);
        ++read;
        if (l1[sm].has(unit)) ++in_l1;
        else if (l2.has(unit)) ++in_l2;
    };
    uint64_t state = 88172645463325252ull;
    while (left > 0)
        for (int64_t slot = 0; slot < resident; ++slot) {
            if (!busy[slot]) continue;
            const int64_t sm = slot / blocks;
            for (int j = 0; j < at_once; ++j) {
                Line& line = lines[slot * at_once + j];
                if (line.row >= line.last) continue;
                state ^= state << 13, state ^= state >> 7, state ^= state << 17;
                if ((state >> 32) % 8 == 0) continue;
                const int64_t end = indptr[line.row + 1];
                for (int k = 0; k < turn && line.entry < end; ++k) touch(sm, indices[line.entry++]);
                if (line.entry < end) continue;
                if (own) touch(sm, line.row);
                line.row += at_once;
                if (line.row < line.last) line.entry = indptr[line.row];
                else --busy[slot], --left;
            }
            if (!busy[slot]) begin(slot, one_visit ? next++ : number[slot] + resident);
        }
    printf("%lld %lld %lld\n", (long long)read, (long long)in_l1, (long long)in_l2);
}
