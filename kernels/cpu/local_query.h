/* One query on the items around it; included by local.c for each type. The same in array
 * operations, for a batch of queries, is backends/local_search.py.
 *
 * Three stages (x = A^-1 y with A = I - alpha W, times 1 - alpha at the end):
 * 1. Push: while the residual of an item is large, add it to the item's score and hand alpha of it
 *    to its neighbors. What is left, f, is small and spread out; x = pushed + A^-1 f.
 * 2. Coarse: c = E^-1 Z^T f on the groups, and from it a guess everywhere: f + alpha W Z c.
 * 3. Rounds on the items T that were pushed: solve A_TT for them, with the guess as boundary;
 *    predict their neighbors from the solution; let the best of those into T; until the best items
 *    rest and nobody outside is predicted among them.
 *
 * Items are numbered as they are visited ("local numbers"); each row of the graph is copied once,
 * with local numbers, when its item joins T. */

#define LOCAL(name) HG_NAME(HG_PASTE(HG_PASTE(name, REAL_NAME), INDEX_NAME))

typedef struct {
    const hg_local_index *index;
    const hg_local_settings *settings;
    hg_local_memory *memory;
    const INDEX *indptr, *indices;
    const REAL *weights;
    REAL *left, *guess, *coarse, *score, *direction, *limit, *pushed, *before; /* by local number */
    REAL *residual, *product, *sorted, *change, *towards;             /* by row of T */
    REAL threshold;
    int64_t visited, rows, entries;
    int full;
} LOCAL(hg_local);

/* The local number of an item; the room must have been checked. */
HG_INLINE int32_t LOCAL(hg_visit)(LOCAL(hg_local) *local, int64_t item) {
    hg_local_memory *memory = local->memory;
    int32_t known = memory->place[item];
    if (known >= 0) return known;
    known = (int32_t)local->visited++;
    memory->place[item] = known;
    memory->node[known] = (int32_t)item;
    memory->row[known] = -1;
    memory->best[known] = 0;
    local->before[known] = NAN;
    local->left[known] = local->pushed[known] = local->direction[known] = 0;
    return known;
}

/* What a score counts in the ranking. */
HG_INLINE REAL LOCAL(hg_told)(const LOCAL(hg_local) *local, int32_t number, REAL score) {
    if (!local->settings->rooted) return score;
    return score * ((const REAL *)local->index->roots)[local->memory->node[number]];
}

/* Rows lie anywhere in memory: ask for an item's row before it is read. */
HG_INLINE void LOCAL(hg_expect)(const LOCAL(hg_local) *local, int32_t number) {
    const int64_t first = local->indptr[local->memory->node[number]];
    for (int line = 0; line < HG_LINES; line++) {
        HG_PREFETCH((const char *)(local->indices + first) + HG_LINE * line);
        HG_PREFETCH((const char *)(local->weights + first) + HG_LINE * line);
    }
}

/* Let a visited item into T and read its row; nothing, and `full`, if there is no room. */
static void LOCAL(hg_join)(LOCAL(hg_local) *local, int32_t number) {
    hg_local_memory *memory = local->memory;
    if (memory->row[number] >= 0) return;
    const int64_t item = memory->node[number];
    const int64_t first = local->indptr[item], last = local->indptr[item + 1];
    /* With room for all items there is room for these, however many of them are known. */
    if ((memory->room < local->index->items && local->visited + (last - first) > memory->room) ||
        local->entries + (last - first) > memory->entries) {
        local->full = 1;
        return;
    }
    int32_t *column = memory->column + local->entries;
    REAL *weight = (REAL *)memory->weight + local->entries;
    for (int64_t e = first; e < last; e++) HG_PREFETCH(memory->place + local->indices[e]);
    for (int64_t e = first; e < last; e++) {
        *column++ = LOCAL(hg_visit)(local, local->indices[e]);
        *weight++ = local->weights[e];
    }
    memory->row[number] = (int32_t)local->rows;
    memory->member[local->rows++] = number;
    local->entries += last - first;
    memory->start[local->rows] = local->entries;
}

static void LOCAL(hg_push)(LOCAL(hg_local) *local) {
    hg_local_memory *memory = local->memory;
    const REAL alpha = (REAL)local->settings->alpha, *roots = local->index->roots;
    REAL *left = local->left;
    int64_t limited = 0; /* visited items whose limits are known */
    /* An item stands in the queue at most once: it enters when its residual rises above its limit,
     * and leaves with a residual of zero. */
    int64_t head = 0, tail = local->visited;
    for (int64_t number = 0; number < tail; number++) memory->queue[number] = (int32_t)number;
    const int64_t most = HG_PUSHES_PER_ROOM * memory->room;
    while (head != tail) {
        if (head == most) local->full = 1;
        const int32_t number = memory->queue[head++ % memory->room];
        if (head + 1 < tail) LOCAL(hg_expect)(local, memory->queue[(head + 1) % memory->room]);
        if (!local->full) LOCAL(hg_join)(local, number);
        if (local->full) break;
        for (; limited < local->visited; limited++)
            local->limit[limited] = local->threshold * roots[memory->node[limited]];
        const REAL mass = left[number], passed = alpha * mass;
        local->pushed[number] += mass;
        left[number] = 0;
        const int64_t row = memory->row[number], stop = memory->start[row + 1];
        for (int64_t e = memory->start[row]; e < stop; e++) {
            const int32_t other = memory->column[e];
            const REAL before = left[other];
            const REAL after = before + ((const REAL *)memory->weight)[e] * passed;
            left[other] = after;
            const REAL limit = local->limit[other];
            if (fabs(before) <= limit && fabs(after) > limit)
                memory->queue[tail++ % memory->room] = other;
        }
    }
}

/* c = E^-1 Z^T f, from what push left over. */
static void LOCAL(hg_coarse)(LOCAL(hg_local) *local) {
    const hg_local_index *index = local->index;
    hg_local_memory *memory = local->memory;
    const INDEX *start = index->spread_indptr, *group = index->spread_groups;
    const REAL *share = index->spread_weights;
    REAL *sums = memory->sums, *restrict coefficients = memory->coefficients;
    for (int64_t number = 0; number < local->visited; number++) {
        const int64_t item = memory->node[number], first = start[item];
        /* The group of an item comes first in its row; items of no group have no row. */
        if (local->left[number] == 0 || first == start[item + 1]) continue;
        const int64_t own = group[first];
        if (own >= index->groups) continue;
        sums[own] += share[first] * local->left[number];
    }
    for (int64_t g = 0; g < index->groups; g++) coefficients[g] = 0;
    for (int64_t own = 0; own < index->groups; own++) {
        const REAL sum = sums[own];
        sums[own] = 0;
        if (sum == 0) continue;
        if (own >= index->coupled) {
            coefficients[own] += ((const REAL *)index->alone)[own - index->coupled] * sum;
            continue;
        }
        const REAL *restrict inverse = (const REAL *)index->together + own * index->coupled;
        for (int64_t g = 0; g < index->coupled; g++) coefficients[g] += inverse[g] * sum;
    }
}

/* The first guess of items that were visited since: of the groups, and smoothed by the graph. */
static void LOCAL(hg_guess)(LOCAL(hg_local) *local, int64_t from) {
    const hg_local_index *index = local->index;
    const INDEX *start = index->spread_indptr, *group = index->spread_groups;
    const REAL *weight = index->spread_weights, *coefficients = local->memory->coefficients;
    const REAL alpha = (REAL)local->settings->alpha;
    for (int64_t number = from; number < local->visited; number++) {
        /* Rows lie anywhere in memory: ask for them early, for where they begin still earlier. */
        if (number + 16 < local->visited) HG_PREFETCH(start + local->memory->node[number + 16]);
        if (number + 8 < local->visited) {
            const int64_t ahead = start[local->memory->node[number + 8]];
            HG_PREFETCH(group + ahead);
            HG_PREFETCH(weight + ahead);
        }
        const int64_t item = local->memory->node[number], stop = start[item + 1];
        REAL coarse = 0, smooth = 0;
        for (int64_t e = start[item]; e < stop; e++) {
            if (group[e] < index->groups)
                coarse += weight[e] * coefficients[group[e]];
            else
                smooth += weight[e] * coefficients[group[e] - index->groups];
        }
        local->coarse[number] = coarse;
        local->guess[number] = local->left[number] + alpha * smooth;
        local->score[number] = local->guess[number];
    }
}

/* The system of T: its residuals by row, and the entries between its rows, numbered by row; the
 * square of the residuals. Entries that lead out of T count for the residual alone: most steps would
 * multiply them by zero. */
HG_SCALAR static double LOCAL(hg_system)(LOCAL(hg_local) *local) {
    hg_local_memory *memory = local->memory;
    const REAL alpha = (REAL)local->settings->alpha;
    const int32_t *column = memory->column, *row = memory->row;
    const REAL *weight = memory->weight, *score = local->score;
    int32_t *inner = memory->inner;
    REAL *inner_weight = memory->inner_weight;
    double squared = 0;
    int64_t count = memory->inner_start[0] = 0;
    for (int64_t t = 0; t < local->rows; t++) {
        REAL sum = 0;
        for (int64_t e = memory->start[t]; e < memory->start[t + 1]; e++) {
            const int32_t other = column[e];
            sum += weight[e] * score[other];
            inner[count] = row[other];
            inner_weight[count] = weight[e];
            count += row[other] >= 0;
        }
        memory->inner_start[t + 1] = count;
        const int32_t number = memory->member[t];
        const REAL left = local->left[number] + alpha * sum - score[number];
        local->residual[t] = left;
        squared += (double)left * left;
    }
    return squared;
}

/* towards - alpha W towards, on T. */
HG_SCALAR static void LOCAL(hg_apply)(const hg_local_memory *memory, int64_t rows, REAL alpha,
                                      const REAL *restrict towards, REAL *restrict product) {
    const int32_t *restrict column = memory->inner;
    const REAL *restrict weight = memory->inner_weight;
    for (int64_t t = 0, e = 0; t < rows; t++) {
        const int64_t stop = memory->inner_start[t + 1];
        REAL first = 0, second = 0, third = 0, fourth = 0;
        for (; e + 4 <= stop; e += 4) {
            first += weight[e] * towards[column[e]];
            second += weight[e + 1] * towards[column[e + 1]];
            third += weight[e + 2] * towards[column[e + 2]];
            fourth += weight[e + 3] * towards[column[e + 3]];
        }
        for (; e < stop; e++) first += weight[e] * towards[column[e]];
        product[t] = towards[t] - alpha * ((first + second) + (third + fourth));
    }
}

/* The sum of the products of two vectors, in the same order whatever the compiler does. */
HG_INLINE double LOCAL(hg_dot)(const REAL *restrict one, const REAL *restrict other, int64_t count) {
    double sums[8] = {0, 0, 0, 0, 0, 0, 0, 0}, sum = 0;
    int64_t t = 0;
    for (; t + 8 <= count; t += 8)
        for (int lane = 0; lane < 8; lane++)
            sums[lane] += (double)one[t + lane] * other[t + lane];
    for (; t < count; t++) sum += (double)one[t] * other[t];
    for (int lane = 0; lane < 8; lane++) sum += sums[lane];
    return sum;
}

/* Conjugate gradients on T from the scores that are there; the square of what they leave. */
static double LOCAL(hg_solve)(LOCAL(hg_local) *local, double goal, int64_t *steps) {
    hg_local_memory *memory = local->memory;
    const REAL alpha = (REAL)local->settings->alpha;
    const int64_t rows = local->rows;
    REAL *restrict change = local->change, *restrict towards = local->towards;
    REAL *restrict residual = local->residual, *restrict product = local->product;
    double squared = LOCAL(hg_system)(local);
    for (int64_t t = 0; t < rows; t++) change[t] = 0, towards[t] = residual[t];
    for (int64_t step = 0; step < local->settings->steps && squared > goal; step++) {
        LOCAL(hg_apply)(memory, rows, alpha, towards, product);
        const double curvature = LOCAL(hg_dot)(product, towards, rows);
        if (!(curvature > 0)) break;
        const REAL size = (REAL)(squared / curvature);
        for (int64_t t = 0; t < rows; t++) {
            change[t] += size * towards[t];
            residual[t] -= size * product[t];
        }
        const double after = LOCAL(hg_dot)(residual, residual, rows);
        const REAL ratio = (REAL)(after / squared);
        squared = after;
        for (int64_t t = 0; t < rows; t++) towards[t] = residual[t] + ratio * towards[t];
        ++*steps;
    }
    for (int64_t t = 0; t < rows; t++) local->score[memory->member[t]] += change[t];
    return squared;
}

/* The k-th largest of some numbers, which are put into another order; the least if there are fewer. */
static REAL LOCAL(hg_kth)(REAL *values, int64_t count, int64_t k) {
    int64_t low = 0, high = count - 1;
    const int64_t wanted = (k < count ? k : count) - 1;
    while (low < high) {
        const REAL pivot = values[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] > pivot) i++;
            while (values[j] < pivot) j--;
            if (i <= j) {
                const REAL swapped = values[i];
                values[i++] = values[j];
                values[j--] = swapped;
            }
        }
        if (wanted <= j)
            high = j;
        else if (wanted >= i)
            low = i;
        else
            break;
    }
    return values[wanted];
}

/* What a member of T scores. */
HG_INLINE REAL LOCAL(hg_score)(const LOCAL(hg_local) *local, int32_t number) {
    return LOCAL(hg_told)(local, number, local->score[number] + local->pushed[number]);
}

/* The k-th score of T. */
static REAL LOCAL(hg_last_score)(LOCAL(hg_local) *local, int64_t k) {
    for (int64_t t = 0; t < local->rows; t++)
        local->sorted[t] = LOCAL(hg_score)(local, local->memory->member[t]);
    return LOCAL(hg_kth)(local->sorted, local->rows, k);
}

/* A score in the units of residuals: over the root of the mean square of the roots of those that
 * score as much. An error that is spread over these evenly is then as large beside their scores as
 * it would be if nothing were multiplied. */
static REAL LOCAL(hg_plain)(const LOCAL(hg_local) *local, REAL least) {
    if (!local->settings->rooted || !(least > 0)) return least;
    double squares = 0;
    int64_t count = 0;
    for (int64_t t = 0; t < local->rows; t++) {
        const int32_t number = local->memory->member[t];
        if (LOCAL(hg_score)(local, number) < least) continue;
        const double root = LOCAL(hg_told)(local, number, 1);
        squares += root * root;
        count++;
    }
    return (REAL)(least * sqrt((double)count / squares));
}

/* Predicted scores of visited items outside of T, in `direction`; the largest of them. */
static REAL LOCAL(hg_predict)(LOCAL(hg_local) *local) {
    hg_local_memory *memory = local->memory;
    const REAL alpha = (REAL)local->settings->alpha;
    REAL *predicted = local->direction, largest = 0;
    for (int64_t t = 0; t < local->rows; t++) {
        const int32_t number = memory->member[t];
        /* The guess has alpha W Z c already. */
        const REAL change = alpha * (local->score[number] - local->coarse[number]);
        for (int64_t e = memory->start[t]; e < memory->start[t + 1]; e++)
            predicted[memory->column[e]] += ((const REAL *)memory->weight)[e] * change;
    }
    for (int64_t number = 0; number < local->visited; number++) {
        if (memory->row[number] >= 0) continue;
        predicted[number] += local->guess[number];
        const REAL told = LOCAL(hg_told)(local, (int32_t)number, predicted[number]);
        if (told > largest) largest = told;
    }
    return largest;
}

/* Visited items join T whose predicted score is at least this; how many. */
static int64_t LOCAL(hg_grow)(LOCAL(hg_local) *local, REAL least) {
    hg_local_memory *memory = local->memory;
    const int64_t visited = local->visited, before = local->rows;
    int32_t *chosen = memory->queue;
    int64_t count = 0;
    for (int64_t number = 0; number < visited; number++)
        if (memory->row[number] < 0 &&
            LOCAL(hg_told)(local, (int32_t)number, local->direction[number]) >= least)
            chosen[count++] = (int32_t)number;
    for (int64_t i = 0; i < count && !local->full; i++) {
        if (i + 8 < count) HG_PREFETCH(local->indptr + memory->node[chosen[i + 8]]);
        if (i + 4 < count) LOCAL(hg_expect)(local, chosen[i + 4]);
        local->score[chosen[i]] = local->direction[chosen[i]];
        LOCAL(hg_join)(local, chosen[i]);
    }
    LOCAL(hg_guess)(local, visited);
    /* Of those that were seen just now, nothing better is known. */
    for (int64_t number = visited; number < local->visited; number++)
        local->direction[number] = local->guess[number];
    return local->rows - before;
}

/* How many of the best are new; they are marked. And how much the scores around the k-th moved
 * against each other since the round before, relative to it: their standard deviation. */
static int64_t LOCAL(hg_changes)(LOCAL(hg_local) *local, REAL last, double *drift) {
    uint8_t *best = local->memory->best;
    int64_t changes = 0, count = 0;
    double sum = 0, squares = 0;
    for (int64_t t = 0; t < local->rows; t++) {
        const int32_t number = local->memory->member[t];
        const REAL score = LOCAL(hg_score)(local, number);
        const uint8_t now = score >= last;
        changes += now && !best[number];
        best[number] = now;
        const double moved = (double)score - local->before[number];
        if (score >= (REAL)HG_BORDER_LOW * last && score <= (REAL)HG_BORDER_HIGH * last &&
            moved == moved)
            sum += moved, squares += moved * moved, count++;
        local->before[number] = score;
    }
    const double mean = count ? sum / (double)count : 0;
    const double variance = count ? squares / (double)count - mean * mean : 0;
    *drift = count && last > 0 ? sqrt(variance > 0 ? variance : 0) / (double)last : INFINITY;
    return changes;
}

HG_INLINE int LOCAL(hg_before)(const LOCAL(hg_local) *local, int32_t one, int32_t other) {
    const REAL left = local->direction[one], right = local->direction[other];
    if (left != right) return left > right;
    const int32_t *node = local->memory->node;
    return local->index->order[node[one]] < local->index->order[node[other]];
}

/* Put numbers (count) in order, the best first: a heap whose root is the worst. */
static void LOCAL(hg_sort)(const LOCAL(hg_local) *local, int32_t *numbers, int64_t count) {
    int64_t size = count;
    for (int64_t first = count / 2 - 1; size > 1 || first >= 0;) {
        int32_t sunk;
        if (first >= 0) {
            sunk = numbers[first];
        } else {
            sunk = numbers[--size];
            numbers[size] = numbers[0];
        }
        int64_t hole = first >= 0 ? first : 0;
        for (int64_t child; (child = 2 * hole + 1) < size; hole = child) {
            if (child + 1 < size && LOCAL(hg_before)(local, numbers[child], numbers[child + 1]))
                child++;
            if (!LOCAL(hg_before)(local, sunk, numbers[child])) break;
            numbers[hole] = numbers[child];
        }
        numbers[hole] = sunk;
        if (first >= 0) first--;
    }
}

/* The k best of T in order, times 1 - alpha; how many there are. */
static int64_t LOCAL(hg_best)(LOCAL(hg_local) *local, int64_t k, int64_t *places, REAL *scores) {
    hg_local_memory *memory = local->memory;
    const REAL scale = (REAL)(1 - local->settings->alpha);
    /* Scores are told to a sixteenth of the tolerance, a power of two: more than they are exact to,
     * and so few digits that items that are equal by symmetry nearly always tie, whatever the order
     * of the sums. */
    const double parts = exp2(floor(log2(16 / local->settings->tolerance)));
    int32_t *found = memory->queue;
    int64_t count = 0;
    for (int64_t t = 0; t < local->rows; t++) {
        const int32_t number = memory->member[t];
        int exponent;
        const double score = local->settings->rooted
                                 ? (double)LOCAL(hg_score)(local, number)
                                 : (double)local->score[number] + local->pushed[number];
        const double digits = rint(frexp(score, &exponent) * parts) / parts;
        local->sorted[t] = local->direction[number] = (REAL)ldexp(digits, exponent);
    }
    const REAL last = LOCAL(hg_kth)(local->sorted, local->rows, k);
    for (int64_t t = 0; t < local->rows; t++)
        if (local->direction[memory->member[t]] >= last) found[count++] = memory->member[t];
    LOCAL(hg_sort)(local, found, count);
    if (count > k) count = k;
    for (int64_t t = 0; t < count; t++) {
        places[t] = memory->node[found[t]];
        scores[t] = scale * local->direction[found[t]];
    }
    return count;
}

/* The square of what may be left: where scores fall steeply, the best items are far below the
 * observation, and it must be small beside them. */
static double LOCAL(hg_goal)(int64_t rank, REAL score, double whole, double tolerance) {
    const double small = (double)rank * score * score;
    return tolerance * (score > 0 && small < whole ? small : whole);
}

/* Whether more of the best k may be wrong than `spare`, as far as scores still move. One more are
 * wrong only if so many from inside change places with so many from outside, and the innermost pair
 * of these is at least from rank k - spare to k + spare + 1: whether that is near beside the drift,
 * which is told as a part of the last score watched. Equal scores may change. `sorted` has the
 * scores of T. */
static int LOCAL(hg_close)(LOCAL(hg_local) *local, int64_t k, REAL last, double drift) {
    const hg_local_settings *settings = local->settings;
    const double inside = LOCAL(hg_kth)(local->sorted, local->rows, k - settings->spare);
    const double outside = LOCAL(hg_kth)(local->sorted, local->rows, k + settings->spare + 1);
    const double gap = inside - outside;
    return gap > settings->tolerance / 4 * inside && gap <= settings->gap * drift * last;
}

/* The best visited items by their predicted scores join T: all that are predicted above the last of
 * the best, and so many that T grows as it should. Around a few items there may be too few: then
 * their own neighbors follow, by the guess. */
static void LOCAL(hg_let_in)(LOCAL(hg_local) *local, REAL last) {
    const double growth = local->settings->growth;
    int64_t wanted = (int64_t)(growth * (double)local->rows) + 1;
    /* The rule compares two rounds, and the first that counts has `fewest` items. */
    const int64_t before = (int64_t)((double)local->settings->fewest / (1 + growth)) - local->rows;
    if (wanted < before) wanted = before;
    for (int ring = 0; ring < HG_RINGS && wanted > 0 && !local->full; ring++) {
        int64_t count = 0;
        /* Where fewer than are watched are known at all, everybody may come in. */
        REAL least = -INFINITY;
        if (last > 0) {
            for (int64_t number = 0; number < local->visited; number++)
                if (local->memory->row[number] < 0 && local->direction[number] > 0)
                    local->sorted[count++] =
                        LOCAL(hg_told)(local, (int32_t)number, local->direction[number]);
            if (count == 0) break;
            least = LOCAL(hg_kth)(local->sorted, count, wanted);
            if (least > last) least = last;
        }
        const int64_t joined = LOCAL(hg_grow)(local, least);
        if (joined == 0) break;
        wanted -= joined;
    }
}

/* Rounds until the rule is met, or there is no room. The rule: since the round before, which knew
 * fewer items, none of the best changed (of many hundreds: a few) and the scores around the last of
 * them moved little against each other (or some changed or may change, and moved hardly at all); and
 * nobody outside is predicted among them. */
static void LOCAL(hg_rounds)(LOCAL(hg_local) *local, int64_t k, double whole,
                             hg_local_report *report) {
    const hg_local_settings *settings = local->settings;
    const int64_t watched = settings->watched;
    const double tolerance = settings->tolerance * settings->tolerance;
    double squared = 0, drift = 0, goal = tolerance * whole, rest = 0;
    for (int64_t number = 0; number < local->visited; number++)
        rest += (double)local->left[number] * local->left[number];
    /* Beside the rounding of what was left, smaller residuals say nothing. */
    const double least = HG_ROUNDINGS * HG_EPSILON * HG_ROUNDINGS * HG_EPSILON * rest;
    report->settled = 0;
    for (report->rounds = 1;; report->rounds++) {
        squared = LOCAL(hg_solve)(local, goal, &report->steps);
        const REAL last = local->rows < watched ? 0 : LOCAL(hg_last_score)(local, watched);
        if (last > 0) goal = LOCAL(hg_goal)(watched, LOCAL(hg_plain)(local, last), whole, tolerance);
        const int64_t changes = LOCAL(hg_changes)(local, last, &drift), visited = local->visited;
        if (visited == local->rows) {  /* whole components: nothing is cut off, so solve them well */
            const REAL kth = k < visited ? LOCAL(hg_last_score)(local, k) : 0;
            goal = LOCAL(hg_goal)(k, LOCAL(hg_plain)(local, kth), whole, tolerance / HG_WHOLE);
            for (int tries = 0; tries < HG_TRIES && squared > goal; tries++)
                squared = LOCAL(hg_solve)(local, goal, &report->steps);
            report->settled = squared <= goal && goal >= least;
            break;
        }
        const REAL outside = LOCAL(hg_predict)(local);
        const int moves = changes > settings->few || (last > 0 && LOCAL(hg_close)(local, k, last, drift));
        const int still = moves ? changes <= settings->changes && drift <= settings->calm
                                : drift <= settings->drift;
        /* Who has seen most of a graph goes on to all of it: it has no near and far. */
        const int nearby = HG_MOST * visited <= (HG_MOST - 1) * local->index->items;
        report->settled = report->rounds > 1 && local->rows >= settings->fewest && still && nearby &&
                          outside < last && squared <= HG_NEAR * goal && goal >= least;
        const int over = report->settled || report->rounds >= settings->rounds;
        if (!over) {
            LOCAL(hg_let_in)(local, last);
            for (int64_t number = 0; number < visited; number++)
                if (local->memory->row[number] < 0) local->score[number] = local->direction[number];
        }
        for (int64_t number = 0; number < local->visited; number++) local->direction[number] = 0;
        if (over || local->full) break;
    }
    report->residual = whole > 0 ? sqrt(squared / whole) : 0;
}

static void LOCAL(hg_query)(LOCAL(hg_local) *local, int64_t width, const int64_t *places,
                            const REAL *values, int64_t k, int64_t *best, REAL *scores,
                            hg_local_report *report) {
    hg_local_memory *memory = local->memory;
    REAL largest = 0;
    for (int64_t q = 0; q < width; q++)
        if (places[q] >= 0 && fabs(values[q]) > largest) largest = (REAL)fabs(values[q]);
    local->visited = local->rows = local->entries = 0;
    local->full = 0;
    local->threshold = (REAL)(local->settings->push * largest);
    memory->start[0] = 0;
    for (int64_t q = 0; q < width; q++)
        if (places[q] >= 0) local->left[LOCAL(hg_visit)(local, places[q])] += values[q];
    double whole = 0;
    for (int64_t number = 0; number < local->visited; number++)
        whole += (double)local->left[number] * local->left[number];
    *report = (hg_local_report){.settled = 1};
    if (whole > 0) {
        LOCAL(hg_push)(local);
        LOCAL(hg_coarse)(local);
        LOCAL(hg_guess)(local, 0);
        LOCAL(hg_rounds)(local, k, whole, report);
        if (local->rows > 0) report->found = LOCAL(hg_best)(local, k, best, scores);
    }
    report->visited = local->rows;
    report->seen = local->visited;
    report->entries = local->entries;
    for (int64_t number = 0; number < local->visited; number++)
        memory->place[memory->node[number]] = -1;
}

/* Queries `first` to `stop` of (m, width) observations: the places and scores (m, k) of the best. */
HG_EXPORT void LOCAL(hg_local_search)(const hg_local_index *index,
                                      const hg_local_settings *settings, hg_local_memory *memory,
                                      int64_t first, int64_t stop, int64_t width,
                                      const int64_t *places, const REAL *values, int64_t k,
                                      int64_t *best, REAL *scores, hg_local_report *reports) {
    REAL *reals = memory->reals;
    LOCAL(hg_local) local = {
        .index = index,
        .settings = settings,
        .memory = memory,
        .indptr = index->indptr,
        .indices = index->indices,
        .weights = index->weights,
        .left = reals,
        .guess = reals + memory->room,
        .coarse = reals + 2 * memory->room,
        .score = reals + 3 * memory->room,
        .direction = reals + 4 * memory->room,
        .limit = reals + 5 * memory->room,
        .pushed = reals + 6 * memory->room,
        .residual = reals + 7 * memory->room,
        .product = reals + 8 * memory->room,
        .sorted = reals + 9 * memory->room,
        .before = reals + 10 * memory->room,
        .change = reals + 11 * memory->room,
        .towards = reals + 12 * memory->room,
    };
    for (int64_t query = first; query < stop; query++)
        LOCAL(hg_query)(&local, width, places + query * width, values + query * width, k,
                        best + query * k, scores + query * k, reports + query);
}
#undef LOCAL
