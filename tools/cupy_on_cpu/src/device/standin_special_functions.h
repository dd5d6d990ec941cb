// CUDA's mathematical functions that the C library lacks.
#pragma once

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }

inline double sinpi(double x) { return sin(M_PI * fmod(x, 2.0)); }
inline double cospi(double x) { return cos(M_PI * fmod(x, 2.0)); }
inline float sinpif(float x) { return (float)sinpi(x); }
inline float cospif(float x) { return (float)cospi(x); }
inline void sincospi(double x, double* sine, double* cosine) {
    *sine = sinpi(x);
    *cosine = cospi(x);
}

inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
inline float normcdff(float x) { return (float)normcdf((double)x); }
inline float normcdf(float x) { return normcdff(x); }

namespace standin {

template <size_t N>
inline double polynomial(const double (&coefficients)[N], double x) {
    double value = 0;
    for (double coefficient : coefficients)
        value = value * x + coefficient;
    return value;
}

// Acklam's rational approximation of the normal quantile, good to about 1e-9.
inline double rough_normal_quantile(double p) {
    static const double central_top[] = {-3.969683028665376e+01, 2.209460984245205e+02,
                                         -2.759285104469687e+02, 1.383577518672690e+02,
                                         -3.066479806614716e+01, 2.506628277459239e+00};
    static const double central_bottom[] = {-5.447609879822406e+01, 1.615858368580409e+02,
                                            -1.556989798598866e+02, 6.680131188771972e+01,
                                            -1.328068155288572e+01, 1};
    static const double tail_top[] = {-7.784894002430293e-03, -3.223964580411365e-01,
                                      -2.400758277161838e+00, -2.549732539343734e+00,
                                      4.374664141464968e+00,  2.938163982698783e+00};
    static const double tail_bottom[] = {7.784695709041462e-03, 3.224671290700398e-01,
                                         2.445134137142996e+00, 3.754408661907416e+00, 1};
    const double edge = 0.02425;
    if (p >= edge && p <= 1 - edge) {
        const double q = p - 0.5;
        return polynomial(central_top, q * q) * q / polynomial(central_bottom, q * q);
    }
    const double q = sqrt(-2 * (p < edge ? log(p) : log1p(-p)));
    const double tail = polynomial(tail_top, q) / polynomial(tail_bottom, q);
    return p < edge ? tail : -tail;
}

}  // namespace standin

inline double normcdfinv(double p) {
    if (!(p >= 0 && p <= 1)) return NAN;
    if (p == 0) return -INFINITY;
    if (p == 1) return INFINITY;
    double x = standin::rough_normal_quantile(p);
    for (int step = 0; step < 2; step++) {  // Halley's method
        const double error = normcdf(x) - p;
        const double newton = error * sqrt(2 * M_PI) * exp(x * x / 2);
        x -= newton / (1 + x * newton / 2);
    }
    return x;
}

inline double erfinv(double x) { return x == 0 ? x : normcdfinv((x + 1) / 2) * M_SQRT1_2; }
inline float erfinvf(float x) { return (float)erfinv((double)x); }
inline float erfinv(float x) { return erfinvf(x); }
inline double erfcinv(double x) { return -normcdfinv(x / 2) * M_SQRT1_2; }
inline float erfcinvf(float x) { return (float)erfcinv((double)x); }
inline float erfcinv(float x) { return erfcinvf(x); }

inline double erfcx(double x) {
    if (x < 25) return exp(x * x) * erfc(x);
    const double t = 1 / (x * x);  // asymptotic series: erfc underflows here
    return (1 - 0.5 * t + 0.75 * t * t) / (x * sqrt(M_PI));
}
inline float erfcxf(float x) { return (float)erfcx((double)x); }

// Modified Bessel functions by their power series.
inline double cyl_bessel_i0(double x) {
    double term = 1, sum = 1;
    for (int k = 1; k < 500 && term >= sum * 1e-17; k++) {
        term *= x * x / 4 / ((double)k * k);
        sum += term;
    }
    return sum;
}
inline double cyl_bessel_i1(double x) {
    double term = x / 2, sum = term;
    for (int k = 1; k < 500 && fabs(term) >= fabs(sum) * 1e-17; k++) {
        term *= x * x / 4 / ((double)k * (k + 1));
        sum += term;
    }
    return sum;
}
