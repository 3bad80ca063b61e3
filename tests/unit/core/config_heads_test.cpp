#include <gtest/gtest.h>

#include "core/config/config.hpp"

namespace tessera {
namespace {

using List = std::vector<std::string>;

List contradictions(RunConfig config) {
  derive(config);
  List list;
  for (const Finding& finding : check(config)) list.push_back(finding.keys.front() + ": " + finding.text);
  return list;
}

TEST(Check, RotaryPositionsTurnPairsOfAHead) {
  for (std::int64_t head = 1; head <= 9; ++head)
    for (std::int64_t turned = 0; turned <= 10; ++turned) {  // 0: left out
      RunConfig config;
      config.run.steps = 1;
      config.model.layers = 1;
      config.model.hidden = 12;
      config.model.heads = 2;
      config.model.seq_len = 8;
      config.data.files = {"*.txt"};
      config.batch = {1, 1};
      config.model.head_dim = head;
      if (turned > 0) config.model.rope_dim = turned;
      EXPECT_EQ(contradictions(config), List{}) << "learned positions turn nothing";
      config.model.position = Position::rotary;
      const std::int64_t used = turned > 0 ? turned : head;
      const List found = contradictions(config);
      ASSERT_EQ(found.size(), used > head || used % 2 != 0 ? 1u : 0u) << head << " " << turned;
      if (found.empty()) continue;
      const std::string key = used > head || turned != head ? "model.rope_dim" : "model.head_dim";
      EXPECT_TRUE(found.front().starts_with(turned == 0 ? "model.head_dim" : key)) << found.front();
    }
}

}  // namespace
}  // namespace tessera
