#include "worker/options/deciding_facts.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace starring {
namespace {

constexpr size_t kDigestDigits = 16;       // 64 bits: no two files of one user share them by chance
constexpr size_t kVariableBytesMax = 100;  // the agreement travels, and a variable may be of any length

// A copy of a shipped model has its name too: the value must not depend on where the file is.
std::string ModelOf(const LayerFile& layers, int64_t outputs) {
  const std::string digest = layers.Digest(outputs);
  std::string name = "a layer file";
  for (const ShippedModel& shipped : ShippedModels()) {
    const absl::StatusOr<LayerFile> file = LayerFile::Load(shipped.name);
    if (file.ok() && file->Digest(outputs) == digest) name = std::string(shipped.name);
  }
  return absl::StrCat(name, " with digest ", digest.substr(0, kDigestDigits));
}

}  // namespace

Facts DecidingFacts(const LayerFile& layers, const TrainAndTest& data, const LauncherEnvironment& environment) {
  Facts facts = {{"model", ModelOf(layers, data.train.outputs())}};
  for (auto& fact : DatasetFacts(data)) facts.push_back(std::move(fact));
  for (auto& fact : EnvironmentFacts(environment)) facts.push_back(std::move(fact));
  return facts;
}

Facts EnvironmentFacts(const LauncherEnvironment& environment) {
  Facts facts;
  for (const auto& [name, value] : environment.arithmetic) {
    facts.emplace_back(absl::StrCat("environment.", name), absl::CHexEscape(value.substr(0, kVariableBytesMax)));
  }
  return facts;
}

}  // namespace starring
