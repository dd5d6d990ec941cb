// The headers that begin every kernel of CuPy's own, together, so that they can be precompiled.
#pragma once
#include "standin_device.h"

#include <cupy/complex.cuh>

#include <cupy/carray.cuh>

#include <cupy/atomics.cuh>

#include <cupy/math_constants.h>
