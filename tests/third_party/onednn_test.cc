#include <vector>

#include "dnnl.hpp"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Onednn, VersionIsTheOneWeWroteFor) {
  EXPECT_EQ(dnnl_version()->major, DNNL_VERSION_MAJOR);
  EXPECT_EQ(dnnl_version()->major, 2);
}

TEST(Onednn, MultipliesMatrices) {
  std::vector<float> a = {1, 2, 3, 4};
  std::vector<float> b = {5, 6, 7, 8};
  std::vector<float> c(4);
  ASSERT_EQ(dnnl_sgemm('N', 'N', 2, 2, 2, 1, a.data(), 2, b.data(), 2, 0, c.data(), 2), dnnl_success);
  EXPECT_EQ(c, std::vector<float>({19, 22, 43, 50}));
}

}  // namespace
}  // namespace starring
