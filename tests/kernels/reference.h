// The operations of kernels/device.h as plain loops in double precision, to test devices against. Shapes and orders in
// memory are those of the contract. Each gradient follows from its forward by the chain rule, and reference_test.cc
// tests it by finite differences.
#ifndef STARRING_TESTS_KERNELS_REFERENCE_H_
#define STARRING_TESTS_KERNELS_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device.h"

namespace starring::reference {

using Values = std::vector<double>;

struct Gradients {
  Values dx, dweight, dbias;
};

// An empty bias is none.
Values Conv2d(const Conv2dSpec& spec, const Values& x, const Values& weight, const Values& bias);
// The activation lets dy through where `y` says so.
Gradients Conv2dBackward(const Conv2dSpec& spec, const Values& x, const Values& weight, const Values& y, Values dy);

Values Dense(const DenseSpec& spec, const Values& x, const Values& weight, const Values& bias);
Gradients DenseBackward(const DenseSpec& spec, const Values& x, const Values& weight, const Values& y, Values dy);

Values MaxPool2d(const Pool2dSpec& spec, const Values& x);
Values MaxPool2dBackward(const Pool2dSpec& spec, const Values& x, const Values& dy);

Values GlobalAveragePool(const GlobalAveragePoolSpec& spec, const Values& x);
Values GlobalAveragePoolBackward(const GlobalAveragePoolSpec& spec, const Values& dy);

// Elements of an operation's tensors; 0 for a tensor that it does not have.
struct Sizes {
  int64_t x = 0, y = 0, weight = 0, bias = 0;
};
Sizes SizesOf(const OperationSpec& spec);
// Any operation; a value of y that it leaves alone is NaN. Tensors that it does not have, or does not read, are empty;
// the gradients that it does not have, too.
Values Forward(const OperationSpec& spec, const Values& x, const Values& weight, const Values& bias);
Gradients Backward(const OperationSpec& spec, const Values& x, const Values& weight, const Values& y, const Values& dy);

struct Moments {
  Values mean, variance;  // biased
};
Moments BatchMoments(const BatchNormSpec& spec, const Values& x);
Values BatchNorm(const BatchNormSpec& spec, const Values& x, const Values& gamma, const Values& beta,
                 const Moments& moments);

// The sum over the batch of kMse or kBce.
double ValueLoss(const LossSpec& spec, const Values& outputs, const std::vector<float>& targets);
// The cross entropy of softmax(logits) with the spec's targets, one per sample.
Values CrossEntropy(const LossSpec& spec, const Values& logits, const std::vector<int32_t>& labels);

// d loss / d at[index] by a central difference, exact to about 1e-8 where `loss` is smooth and of order 1.
double FiniteDifference(const std::function<double(const Values&)>& loss, Values at, int64_t index);

double Dot(const Values& a, const Values& b);

}  // namespace starring::reference

#endif  // STARRING_TESTS_KERNELS_REFERENCE_H_
