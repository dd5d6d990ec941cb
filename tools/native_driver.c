/* Calls the native core from four threads of its own, and checks what comes out against plain loops:
 * a test that needs no Python, for ThreadSanitizer and for other processors (native_checks.py). */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, N = 300, K = 12, TILE = 16, MOST = 130 };

void hg_laplacian_step_f32_i32_plain(int64_t, int64_t, int64_t, const int32_t *, const int32_t *,
                                     const float *, const float *, double, int64_t, float *,
                                     double *);
void hg_cg_update_f32_plain(int64_t, int64_t, float *, float *, const float *, const float *,
                            const float *, double *);
void hg_cg_direction_f32_plain(int64_t, int64_t, const float *, float *, const float *);
int64_t hg_sorted_lists_f32_plain(int64_t, int64_t, int64_t, const int64_t *, const float *,
                                  int32_t *, float *, int32_t *);
void hg_listed_back_f32_plain(int64_t, int64_t, int64_t, const int32_t *, const float *,
                              const int32_t *, float *);
int64_t hg_components_i32_plain(int64_t, const int32_t *, const int32_t *, int32_t *);

static int32_t indptr[N + 1], indices[N * K], columns[N * K], counts[N], labels[N];
static int64_t ids[N * K];
static float data[N * K], similarities[N * K], weights[N * K], back[N * K];
static float solution[N * MOST], residual[N * MOST], direction[N * MOST], product[N * MOST];
static float before[N * MOST], by[MOST];
static double dots[(N / TILE + 1) * MOST], squares[(N / TILE + 1) * MOST];
static int64_t m;
static int stage, failed;

static uint32_t seed = 7;
static float draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 16777216.0f;
}

static void check(int good, const char *what) {
    if (!good) printf("wrong: %s, %d columns\n", what, (int)m), failed = 1;
}

static void tile(int64_t number) {
    const int64_t first = number * TILE, last = first + TILE < N ? first + TILE : N;
    const int64_t skip = first * m;
    if (stage == 0)
        hg_laplacian_step_f32_i32_plain(first, last, m, indptr, indices, data, direction, 0.9,
                                        1, product, dots + number * m);
    if (stage == 1)
        hg_cg_update_f32_plain(last - first, m, solution + skip, residual + skip, direction + skip,
                               product + skip, by, squares + number * m);
    if (stage == 2)
        hg_cg_direction_f32_plain(last - first, m, residual + skip, direction + skip, by);
    if (stage == 3) hg_sorted_lists_f32_plain(first, last, K, ids + first * K, similarities + first * K, columns, weights, counts);
    if (stage == 4) hg_listed_back_f32_plain(first, last, K, columns, weights, counts, back);
}

static void *work(void *own) {
    for (int64_t number = (intptr_t)own; number * TILE < N; number += THREADS) tile(number);
    return NULL;
}

static void run(int which) {
    pthread_t threads[THREADS];
    stage = which;
    for (intptr_t t = 0; t < THREADS; t++) pthread_create(threads + t, NULL, work, (void *)t);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
}

static void steps(void) {
    for (int64_t i = 0; i < N * m; i++) {
        solution[i] = draw(), residual[i] = draw(), direction[i] = before[i] = draw() - 0.5f;
    }
    for (int64_t c = 0; c < m; c++) by[c] = draw();
    run(0);
    for (int64_t c = 0; c < m; c++) {
        double sum = 0, found = 0;
        for (int64_t i = 0; i < N; i++) {
            double value = 0;
            for (int32_t p = indptr[i]; p < indptr[i + 1]; p++)
                value += (double)data[p] * direction[indices[p] * m + c];
            value = direction[i * m + c] - 0.9 * value;
            check(fabs(value - product[i * m + c]) < 1e-4, "product");
            sum += value * direction[i * m + c];
        }
        for (int64_t number = 0; number * TILE < N; number++) found += dots[number * m + c];
        check(fabs(sum - found) < 1e-3, "dots");
    }
    memcpy(before, residual, sizeof residual);
    run(1);
    for (int64_t c = 0; c < m; c++) {
        double sum = 0, found = 0;
        for (int64_t i = c; i < N * m; i += m) {
            const double left = before[i] - (double)product[i] * by[c];
            check(fabs(left - residual[i]) < 1e-4, "residual");
            sum += left * left;
        }
        for (int64_t number = 0; number * TILE < N; number++) found += squares[number * m + c];
        check(fabs(sum - found) < 1e-3 * sum, "squares");
    }
    memcpy(before, direction, sizeof direction);
    run(2);
    for (int64_t i = 0; i < N * m; i++)
        check(fabs(residual[i] + (double)before[i] * by[i % m] - direction[i]) < 1e-4, "direction");
}

static void lists(void) {
    for (int64_t i = 0; i < N * K; i++) ids[i] = (int64_t)(draw() * N), similarities[i] = draw();
    memset(back, 0, sizeof back);
    run(3), run(4);
    for (int64_t i = 0; i < N; i++)
        for (int32_t s = 0; s < counts[i]; s++) {
            const int64_t other = columns[i * K + s];
            float expected = 0;
            for (int32_t t = 0; t < counts[other]; t++)
                if (columns[other * K + t] == i) expected = weights[other * K + t];
            check(back[i * K + s] == expected, "mutual edges");
        }
}

int main(void) {
    for (int64_t i = 0; i < N; i++) {
        indptr[i + 1] = indptr[i];
        for (int s = 0; s < (int)(i % K); s++, indptr[i + 1]++) {
            indices[indptr[i + 1]] = (int32_t)(draw() * N);
            data[indptr[i + 1]] = draw();
        }
    }
    for (m = 1; m <= MOST; m += m < 20 ? 1 : 11) steps();
    lists();
    const int64_t parts = hg_components_i32_plain(N, indptr, indices, labels);
    for (int64_t i = 0; i < N; i++)
        for (int32_t p = indptr[i]; p < indptr[i + 1]; p++)
            check(labels[i] == labels[indices[p]] && labels[i] < parts, "components");
    puts(failed ? "failed" : "all as expected");
    return failed;
}
