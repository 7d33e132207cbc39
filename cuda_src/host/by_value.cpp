// Structures that GPU kernels take by value, filled on the host: their formulas are in the math
// headers, and a kernel finds them among its arguments without computing them in every block.
#include <cstdint>
#include <cstring>

#include "math/adam.cuh"
#include "math/projection.cuh"
#include "math/reach.cuh"

using namespace spx;

namespace {

// Copies a structure into `room` bytes at out. Returns its size; nothing is written if it is
// another.
template <typename S>
int64_t give(const S& value, int64_t room, void* out) {
    if (room == int64_t(sizeof(S))) std::memcpy(out, &value, sizeof(S));
    return int64_t(sizeof(S));
}

}  // namespace

// camera: Camera.packed(), 16 values. out: one View<float>.
extern "C" int64_t spx_view_f32(const double* camera, int64_t width, int64_t height,
                                double near_plane, int64_t room, uint8_t* out) {
    return give(make_view<float>(camera, double(width), double(height), near_plane), room, out);
}

// camera: Camera.packed(), 16 values. out: one ReachView.
extern "C" int64_t spx_reach_view(const double* camera, int64_t width, int64_t height,
                                  int64_t room, uint8_t* out) {
    return give(make_reach_view(camera, double(width), double(height)), room, out);
}

// rates: (groups,). out: (groups, 8), AdamStep<float> each.
extern "C" int64_t spx_adam_steps_f32(int64_t groups, const double* rates, double beta1,
                                      double beta2, double epsilon, double step, double scale,
                                      float* out) {
    static_assert(sizeof(AdamStep<float>) == 8 * sizeof(float), "Python allots 8 floats");
    for (int64_t k = 0; k < groups; ++k)
        give(make_adam_step<float>(rates[k], beta1, beta2, epsilon, step, scale),
             sizeof(AdamStep<float>), out + 8 * k);
    return 0;
}
