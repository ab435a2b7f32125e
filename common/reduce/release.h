// When an owner seals a round of a star, and which result answers a contribution. A *round* is one sum; a *sealed* one
// takes no contribution any more, and its result is made. A round has a number, in a job the step.
//
// In lock step, the one policy that there is, a round waits for all contributions, and each is answered with the result
// of its own round. So all processes have the same parameters in every step.
//
// Thread safety: a value.
#ifndef STARRING_COMMON_REDUCE_RELEASE_H_
#define STARRING_COMMON_REDUCE_RELEASE_H_

#include <cstdint>

namespace starring {

class Release {
 public:
  static constexpr Release LockStep(int64_t contributions) { return Release(contributions); }

  // Whether a round is sealed that has so many contributions.
  constexpr bool Seals(int64_t contributions) const { return contributions == contributions_; }
  // The round whose result answers a contribution to `round`.
  constexpr int64_t AnswerTo(int64_t round) const { return round; }

 private:
  constexpr explicit Release(int64_t contributions) : contributions_(contributions) {}

  int64_t contributions_;  // of a round
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_RELEASE_H_
