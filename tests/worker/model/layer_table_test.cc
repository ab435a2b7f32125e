// Every kind of the proto has a row, and a row's functions fit its kind.
#include "worker/model/layer_table.h"

#include <google/protobuf/descriptor.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/layer_file.pb.h"

namespace starring {
namespace {

absl::Status Refuse(absl::string_view field, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", reason));
}

// A layer of a kind, with what its fields must have.
v1::Layer LayerOf(const google::protobuf::FieldDescriptor& kind) {
  v1::Layer layer;
  google::protobuf::Message* const fields = layer.GetReflection()->MutableMessage(&layer, &kind);
  for (const char* name : {"out_channels", "kernel", "units", "groups"}) {
    const google::protobuf::FieldDescriptor* const field = kind.message_type()->FindFieldByName(name);
    if (field != nullptr) fields->GetReflection()->SetInt32(fields, field, 2);
  }
  if (layer.has_activation()) layer.mutable_activation()->set_function("silu");
  if (layer.has_scale()) layer.mutable_scale()->set_factor(2);
  return layer;
}

TEST(LayerTableTest, EveryKindHasARow) {
  const google::protobuf::OneofDescriptor& kinds = *v1::Layer::descriptor()->FindOneofByName("kind");
  for (int k = 0; k < kinds.field_count(); ++k) {
    SCOPED_TRACE(kinds.field(k)->name());
    const v1::Layer proto = LayerOf(*kinds.field(k));
    const LayerType* const type = LayerTypeOf(proto);
    ASSERT_NE(type, nullptr);
    if (type->check != nullptr) {
      EXPECT_EQ(type->check({proto, false, Refuse}), absl::OkStatus());
    }
    const SampleShape shape{.height = 4, .width = 6, .channels = 2};
    GraphLayer layer{.name = "a", .in = shape, .out = shape};
    std::vector<TensorSpec> tensors;
    const LayerFill fill{.layer = proto,
                         .inputs = std::vector<SampleShape>(std::abs(type->input_count), shape),
                         .input_names = std::vector<std::string>(std::abs(type->input_count), "input"),
                         .outputs = 3,
                         .error = Refuse};
    EXPECT_EQ(type->fill(fill, &layer, &tensors), absl::OkStatus());
    EXPECT_GE(layer.out.elements(), 1);
    EXPECT_FALSE(layer.works_in_place && layer.backward_reads_input);
    for (const TensorSpec& tensor : tensors) EXPECT_THAT(tensor.name, testing::StartsWith("a."));
  }
}

TEST(LayerTableTest, ALayerWithoutAKindHasNoRow) { EXPECT_EQ(LayerTypeOf(v1::Layer()), nullptr); }

TEST(LayerTableTest, KindsAreListedInTheOrderOfTheProto) {
  EXPECT_THAT(LayerKindNames(), testing::MatchesRegex("conv2d, dense, .*[a-z] or [a-z_]+"));
}

}  // namespace
}  // namespace starring
