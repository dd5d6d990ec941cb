// cuRAND's host interface, on the C++ random numbers. The streams of numbers are not NVIDIA's.
#include <curand.h>

#include <cufft.h>

#include <random>

#include "handles.h"

namespace {

struct Generator {
    std::mt19937_64 engine;
    unsigned long long seed = 0, offset = 0;

    void restart() { engine.seed(seed * 0x9E3779B97F4A7C15ull + offset); }
};

Generator& own(curandGenerator_t generator) { return *reinterpret_cast<Generator*>(generator); }

template <class T, class Draw>
curandStatus_t fill(T* values, size_t count, Draw draw) {
    standin::begin_call();
    for (size_t i = 0; i < count; i++)
        values[i] = draw();
    return CURAND_STATUS_SUCCESS;
}

template <class Distribution, class T>
curandStatus_t fill_from(curandGenerator_t generator, T* values, size_t count,
                         Distribution distribution) {
    return fill(values, count, [&] { return distribution(own(generator).engine); });
}

}  // namespace

extern "C" {

curandStatus_t curandGetVersion(int* version) {
    *version = 10310;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandCreateGenerator(curandGenerator_t* generator, curandRngType_t) {
    *generator = reinterpret_cast<curandGenerator_t>(new Generator);
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
    delete &own(generator);
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetStream(curandGenerator_t, cudaStream_t stream) {
    standin::stream_of_calls = stream;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator,
                                                  unsigned long long seed) {
    own(generator).seed = seed;
    own(generator).restart();
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator, unsigned long long offset) {
    own(generator).offset = offset;
    own(generator).restart();
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetGeneratorOrdering(curandGenerator_t, curandOrdering_t) {
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandGenerate(curandGenerator_t generator, unsigned* values, size_t count) {
    return fill(values, count,
                [&] { return static_cast<unsigned>(own(generator).engine() >> 32); });
}

curandStatus_t curandGenerateLongLong(curandGenerator_t generator, unsigned long long* values,
                                      size_t count) {
    return fill(values, count, [&] { return own(generator).engine(); });
}

// cuRAND's uniform numbers lie in (0, 1], not in [0, 1).
curandStatus_t curandGenerateUniform(curandGenerator_t generator, float* values, size_t count) {
    return fill(values, count,
                [&] { return static_cast<float>((own(generator).engine() >> 40) + 1) * 0x1p-24f; });
}

curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double* values,
                                           size_t count) {
    return fill(values, count,
                [&] { return static_cast<double>((own(generator).engine() >> 11) + 1) * 0x1p-53; });
}

// Normal numbers come in pairs: cuRAND refuses an odd count, and so does this.
curandStatus_t curandGenerateNormal(curandGenerator_t generator, float* values, size_t count,
                                    float mean, float deviation) {
    if (count % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;
    return fill_from(generator, values, count, std::normal_distribution<float>(mean, deviation));
}

curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator, double* values, size_t count,
                                          double mean, double deviation) {
    if (count % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;
    return fill_from(generator, values, count, std::normal_distribution<double>(mean, deviation));
}

curandStatus_t curandGenerateLogNormal(curandGenerator_t generator, float* values, size_t count,
                                       float mean, float deviation) {
    return fill_from(generator, values, count, std::lognormal_distribution<float>(mean, deviation));
}

curandStatus_t curandGenerateLogNormalDouble(curandGenerator_t generator, double* values,
                                             size_t count, double mean, double deviation) {
    return fill_from(generator, values, count,
                     std::lognormal_distribution<double>(mean, deviation));
}

curandStatus_t curandGeneratePoisson(curandGenerator_t generator, unsigned* values, size_t count,
                                     double mean) {
    return fill_from(generator, values, count, std::poisson_distribution<unsigned>(mean));
}

// CuPy asks for this version when it is imported; there are no transforms.
cufftResult cufftGetVersion(int* version) {
    *version = 11401;
    return CUFFT_SUCCESS;
}
}
