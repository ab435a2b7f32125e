// Programs may be started without standard input, output or error, by cron and by daemons. The next file or socket that
// is opened then gets that number, and text for people goes into it.
#ifndef STARRING_COMMON_HOST_STANDARD_STREAMS_H_
#define STARRING_COMMON_HOST_STANDARD_STREAMS_H_

namespace starring {

// Opens /dev/null as each of the descriptors 0, 1 and 2 that is closed.
//
// Thread safety: call it first in main, before anything is opened.
void OpenStandardStreams();

}  // namespace starring

#endif  // STARRING_COMMON_HOST_STANDARD_STREAMS_H_
