// The words of a check between two workers over TCP: a request with a fixed head, and an answer to it.
//
// Only processes of one job talk so, during a check: both ends are the same program on the same kind of machine, and
// the nonce, which travels by the job's launcher, keeps others out. Internal to worker/check.
#ifndef STARRING_WORKER_CHECK_PEER_PROTOCOL_H_
#define STARRING_WORKER_CHECK_PEER_PROTOCOL_H_

#include <cstdint>

namespace starring::peer_protocol {

inline constexpr uint64_t kMagic = 0x6b63656863727473;  // "strcheck"

enum class Word : uint32_t {
  kPing = 1,  // nothing follows; answered with the clock
  kData = 2,  // `length` bytes follow and are thrown away; answered when all have come
  kPut = 3,   // `length` bytes follow: the note of worker `rank` for `stage`
  kGet = 4,   // answered with the note of worker `rank` for `stage`
};

struct Request {
  uint64_t magic = kMagic;
  uint64_t nonce = 0;  // the listener's
  Word word = Word::kPing;
  int32_t rank = 0;
  int32_t stage = 0;
  uint32_t length = 0;
};
static_assert(sizeof(Request) == 32);

struct Answer {
  uint64_t magic = kMagic;
  int64_t clock_us = 0;  // the listener's wall clock
  uint32_t found = 0;    // kGet: whether there is such a note
  uint32_t length = 0;   // of the note, which follows
};
static_assert(sizeof(Answer) == 24);

}  // namespace starring::peer_protocol

#endif  // STARRING_WORKER_CHECK_PEER_PROTOCOL_H_
