/* Forward push for personalized PageRank (Andersen, Chung and Lang, 2006), as the textbook has it.
 *
 * On the symmetric W = D^-1/2 A D^-1/2, which saves a division for every edge: an item whose residual
 * exceeds eps times the root of its degree hands it on. With r = D^1/2 residual this is the usual
 * rule r(u) > eps d(u). Items wait in a queue, first in, first out. One call answers one query; each
 * thread has items of its own, which are as they were when a call returns.
 */
#include <stdint.h>

/* All that an edge needs to know of the item at its end: in one cache line. */
typedef struct {
    float residual, score, limit;
    int32_t waits;
} Item;

static void worst_to_root(float *scores, int32_t *ids, int32_t count, int32_t at) {
    for (;;) {
        int32_t least = at;
        for (int32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (scores[child] < scores[least]) least = child;
        if (least == at) return;
        float score = scores[at];
        int32_t id = ids[at];
        scores[at] = scores[least], ids[at] = ids[least];
        scores[least] = score, ids[least] = id;
        at = least;
    }
}

/* Push from `observed` items until no residual exceeds its limit. The best k of the `seen` items go
 * to `best`, best first; -1 where fewer are seen. `all` (n,) gets all scores, unless it is null, and
 * must be zero before. `queue` and `seen` have room for n items. Returns the edges that were used. */
int64_t forward_push(const int32_t *indptr, const int32_t *indices, const float *values, int32_t n,
                     float alpha, const int32_t *ids, const float *weights, int32_t observed,
                     int32_t k, Item *items, int32_t *queue, int32_t *seen, float *best_scores,
                     int32_t *best, float *all) {
    int32_t count = 0, head = 0, tail = 0, waiting = 0;
    int64_t edges = 0;
    for (int32_t q = 0; q < observed; q++) {
        Item *item = items + ids[q];
        if (!(weights[q] > 0)) continue;
        if (item->residual == 0) seen[count++] = ids[q];
        item->residual += weights[q];
        if (!item->waits && item->residual > item->limit) {
            item->waits = 1, queue[tail] = ids[q], waiting++;
            if (++tail == n) tail = 0;
        }
    }
    while (waiting) {
        int32_t from = queue[head];
        if (++head == n) head = 0;
        waiting--;
        Item *item = items + from;
        float residual = item->residual;
        item->score += (1 - alpha) * residual;
        item->residual = 0;
        item->waits = 0;
        float handed = alpha * residual;
        edges += indptr[from + 1] - indptr[from];
        for (int32_t edge = indptr[from]; edge < indptr[from + 1]; edge++) {
            Item *to = items + indices[edge];
            /* Both are zero only before an item is seen. */
            if (to->residual == 0 && to->score == 0) seen[count++] = indices[edge];
            to->residual += handed * values[edge];
            if (!to->waits && to->residual > to->limit) {
                to->waits = 1, queue[tail] = indices[edge], waiting++;
                if (++tail == n) tail = 0;
            }
        }
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++) {
        Item *item = items + seen[i];
        /* What is left would at least stay where it is. */
        float score = item->score + (1 - alpha) * item->residual;
        if (all) all[seen[i]] = score;
        item->score = item->residual = 0;
        if (kept < k) {
            best_scores[kept] = score, best[kept++] = seen[i];
            if (kept == k)
                for (int32_t at = k / 2; at >= 0; at--) worst_to_root(best_scores, best, k, at);
        } else if (score > best_scores[0]) {
            best_scores[0] = score, best[0] = seen[i];
            worst_to_root(best_scores, best, k, 0);
        }
    }
    if (kept < k)
        for (int32_t at = kept / 2; at >= 0 && kept; at--) worst_to_root(best_scores, best, kept, at);
    /* A heap with the worst at its root, emptied from the end. */
    for (int32_t last = kept - 1; last > 0; last--) {
        float score = best_scores[0];
        int32_t id = best[0];
        best_scores[0] = best_scores[last], best[0] = best[last];
        best_scores[last] = score, best[last] = id;
        worst_to_root(best_scores, best, last, 0);
    }
    for (int32_t i = kept; i < k; i++) best[i] = -1;
    return edges;
}
