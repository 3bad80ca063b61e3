#pragma once
#include <string>

namespace tessera {

/// JSON as text, on one line or with `indent`. Bytes that are no UTF-8, as paths may have, become U+FFFD, since a JSON
/// text cannot hold them.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tessera
