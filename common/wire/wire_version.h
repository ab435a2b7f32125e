// The version of the wire between workers and servers (proto/starring/v1/parameter_server.proto). Raise it with every
// change after which an older peer would misunderstand a newer one. Builds of different versions refuse each other.
#ifndef STARRING_COMMON_WIRE_WIRE_VERSION_H_
#define STARRING_COMMON_WIRE_WIRE_VERSION_H_

namespace starring {

inline constexpr int kWireVersion = 1;  // programs before the first number send 0

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_WIRE_VERSION_H_
