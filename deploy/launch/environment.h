// The environment that children get.
#ifndef STARRING_DEPLOY_LAUNCH_ENVIRONMENT_H_
#define STARRING_DEPLOY_LAUNCH_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace starring {

// "NAME=value" strings. Thread safety: one thread.
class Environment {
 public:
  // A copy of `inherited`, less what another launcher says about us (SLURM_*, PMI_*, PMIX_*, OMPI_COMM_WORLD_*): our
  // children are not its ranks.
  explicit Environment(std::vector<std::string> inherited);

  void Set(absl::string_view name, absl::string_view value);
  // Unless the user has set it.
  void SetDefault(absl::string_view name, absl::string_view value);
  // Null where not set.
  const std::string* Find(absl::string_view name) const;  // the whole "NAME=value"

  const std::vector<std::string>& variables() const { return variables_; }

 private:
  std::vector<std::string> variables_;
};

// The environment of this process.
std::vector<std::string> InheritedEnvironment();

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_ENVIRONMENT_H_
