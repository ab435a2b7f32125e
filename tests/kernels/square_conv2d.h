// The spec of a convolution whose image, kernel, stride and padding are square, on one line.
#ifndef STARRING_TESTS_KERNELS_SQUARE_CONV2D_H_
#define STARRING_TESTS_KERNELS_SQUARE_CONV2D_H_

#include <cstdint>

#include "kernels/device.h"

namespace starring {

struct SquareConv2d {
  int64_t batch = 0, side = 0, in_channels = 0, out_channels = 0;
  int64_t kernel = 1, stride = 1, padding = 0;
};

inline Conv2dSpec SpecOf(const SquareConv2d& s) {
  return {.batch = s.batch,
          .in_height = s.side,
          .in_width = s.side,
          .in_channels = s.in_channels,
          .out_channels = s.out_channels,
          .kernel_height = s.kernel,
          .kernel_width = s.kernel,
          .stride_height = s.stride,
          .stride_width = s.stride,
          .padding_height = s.padding,
          .padding_width = s.padding};
}

}  // namespace starring

#endif  // STARRING_TESTS_KERNELS_SQUARE_CONV2D_H_
