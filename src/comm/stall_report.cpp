#include "comm/stall_report.h"

#include <algorithm>
#include <deque>
#include <iomanip>
#include <sstream>

#include "base/error.h"

namespace longspan {
namespace {

std::string seconds_text(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << seconds << " s";
  return out.str();
}

// The ranks reachable from `start` along "waits for", nearest first, with the rank that led there.
struct WaitChain {
  std::vector<int> order;
  std::vector<int> led_by;
};

WaitChain follow_waits(const std::vector<RankStatus>& statuses, int start) {
  WaitChain chain;
  chain.led_by.assign(statuses.size(), -1);
  std::vector<bool> seen(statuses.size(), false);
  std::deque<int> open{start};
  seen[static_cast<size_t>(start)] = true;
  while (!open.empty()) {
    const int rank = open.front();
    open.pop_front();
    chain.order.push_back(rank);
    const RankStatus& status = statuses[static_cast<size_t>(rank)];
    if (status.kind != RankStatus::Kind::kWaiting) continue;
    for (const int next : status.awaits) {
      if (seen[static_cast<size_t>(next)]) continue;
      seen[static_cast<size_t>(next)] = true;
      chain.led_by[static_cast<size_t>(next)] = rank;
      open.push_back(next);
    }
  }
  return chain;
}

// Silent ranks first, then the one that has gone longest without communication; -1 if all wait.
int find_culprit(const std::vector<RankStatus>& statuses, const std::vector<int>& candidates) {
  int culprit = -1;
  for (const int rank : candidates) {
    const RankStatus& status = statuses[static_cast<size_t>(rank)];
    if (status.kind == RankStatus::Kind::kWaiting) continue;
    if (culprit < 0) {
      culprit = rank;
      continue;
    }
    const RankStatus& best = statuses[static_cast<size_t>(culprit)];
    const bool silent = status.kind == RankStatus::Kind::kSilent;
    const bool best_silent = best.kind == RankStatus::Kind::kSilent;
    if (silent != best_silent ? silent : status.seconds > best.seconds) culprit = rank;
  }
  return culprit;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) out += text(i == 0 ? " " : ", ", ranks[i]);
  return out;
}

}  // namespace

std::string describe(const RankStatus& status) {
  const std::string seconds = seconds_text(status.seconds);
  switch (status.kind) {
    case RankStatus::Kind::kSilent:
      return "does not answer: its process is stopped or gone, or its host cannot be reached";
    case RankStatus::Kind::kWaiting:
      return text("has waited ", seconds, " for ", rank_list(status.awaits), " in '", status.text,
                  "'");
    case RankStatus::Kind::kActivity:
      return text("has been in '", status.text, "' for ", seconds);
    case RankStatus::Kind::kAfter:
      if (status.text.empty()) return text("has not communicated yet, for ", seconds);
      return text("has not communicated for ", seconds, ", since '", status.text, "'");
    case RankStatus::Kind::kFinished:
      return text("ended its part ", seconds, " ago");
  }
  return {};
}

std::string stall_report(const std::vector<RankStatus>& statuses, int reporter) {
  const WaitChain chain = follow_waits(statuses, reporter);
  const int culprit = find_culprit(statuses, chain.order);
  if (culprit < 0) {
    std::string out = "ranks wait for each other";
    const char* separator = ": ";
    for (const int rank : chain.order) {
      out += text(separator, "rank ", rank, " ", describe(statuses[static_cast<size_t>(rank)]));
      separator = "; ";
    }
    return out;
  }
  std::string out = text("rank ", culprit, " ", describe(statuses[static_cast<size_t>(culprit)]));
  const char* object = "it";
  std::string object_name;
  for (int rank = chain.led_by[static_cast<size_t>(culprit)]; rank >= 0;
       rank = chain.led_by[static_cast<size_t>(rank)]) {
    const RankStatus& status = statuses[static_cast<size_t>(rank)];
    out += text("; rank ", rank, " waited ", seconds_text(status.seconds), " for ", object, " in '",
                status.text, "'");
    object_name = text("rank ", rank);
    object = object_name.c_str();
  }
  return out;
}

}  // namespace longspan
