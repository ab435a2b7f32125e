#include "deploy/launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starring {

Environment::Environment(std::vector<std::string> inherited) : variables_(std::move(inherited)) {
  std::erase_if(variables_, [](const std::string& variable) {
    return absl::StartsWith(variable, "SLURM_") || absl::StartsWith(variable, "PMI_") ||
           absl::StartsWith(variable, "PMIX_") || absl::StartsWith(variable, "OMPI_COMM_WORLD_");
  });
}

const std::string* Environment::Find(absl::string_view name) const {
  const auto found = std::find_if(variables_.begin(), variables_.end(), [name](absl::string_view variable) {
    return variable.size() > name.size() && variable.substr(0, name.size()) == name && variable[name.size()] == '=';
  });
  return found == variables_.end() ? nullptr : &*found;
}

void Environment::Set(absl::string_view name, absl::string_view value) {
  if (const std::string* const old = Find(name)) variables_.erase(variables_.begin() + (old - variables_.data()));
  variables_.push_back(absl::StrCat(name, "=", value));
}

void Environment::SetDefault(absl::string_view name, absl::string_view value) {
  if (Find(name) == nullptr) Set(name, value);
}

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

}  // namespace starring
