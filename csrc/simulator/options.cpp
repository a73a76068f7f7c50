#include "options.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "locks.hpp"

namespace gfx942 {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& allowed) {
  throw std::invalid_argument("option " + name + " is '" + value + "', allowed: " + allowed);
}

int integer(const std::string& name, const std::string& value, int low, int high) {
  const bool digits = !value.empty() && value.size() <= 6 &&
                      std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int number = digits ? std::stoi(value) : -1;
  if (number < low || number > high)
    refuse(name, value, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return number;
}

Checks parse_checks(const std::string& value) {
  Checks checks{false, false, false, false, false, false};
  if (value == "none") return checks;
  if (value == "all") return Checks{true, true, true, true, true, true};
  for (size_t begin = 0; begin <= value.size();) {
    const size_t end = std::min(value.find(',', begin), value.size());
    const std::string word = value.substr(begin, end - begin);
    if (word == "waits")
      checks.waits = true;
    else if (word == "wait_states")
      checks.wait_states = true;
    else if (word == "races")
      checks.races = true;
    else if (word == "uninitialised")
      checks.uninitialised = true;
    else if (word == "bounds")
      checks.bounds = true;
    else if (word == "resources")
      checks.resources = true;
    else
      refuse("check", value,
             "none, all, or a comma-separated list of waits, wait_states, races, uninitialised, bounds and "
             "resources");
    begin = end + 1;
  }
  return checks;
}

void set_delivery(Options& options, const std::string& value) {
  const std::string random = "random:";
  if (value == "early" || value == "late") {
    options.delivery = value == "late" ? Delivery::kLate : Delivery::kEarly;
    return;
  }
  const std::string seed = value.compare(0, random.size(), random) == 0 ? value.substr(random.size()) : "";
  if (seed.empty() || seed.size() > 9 ||
      !std::all_of(seed.begin(), seed.end(), [](char c) { return c >= '0' && c <= '9'; }))
    refuse("delivery", value, "early, late, or random:SEED with SEED from 0 to 999999999");
  options.delivery = Delivery::kRandom;
  options.delivery_seed = std::stoull(seed);
}

void apply(Options& options, const std::string& name, const std::string& value) {
  if (name == "threads") {
    options.threads = integer(name, value, 1, 1024);
  } else if (name == "check") {
    options.checks = parse_checks(value);
  } else if (name == "mutation") {
    options.mutation = parse_mutation(value);
  } else if (name == "delivery") {
    set_delivery(options, value);
  } else if (name == "findings") {
    if (value != "first" && value != "all") refuse(name, value, "first, all");
    options.collect_findings = value == "all";
  } else if (name == "matrix") {
    if (value != "float32" && value != "exact") refuse(name, value, "float32, exact");
    options.matrix = value == "exact" ? MatrixArithmetic::kExact : MatrixArithmetic::kFloat32;
  } else if (name == "progress") {
    if (value != "0" && value != "1") refuse(name, value, "0, 1");
    options.progress = value == "1" ? Options::Progress::kOn : Options::Progress::kOff;
  } else if (name == "compute_units") {
    options.compute_units = integer(name, value, 1, 1024);
  } else if (name == "xcds") {
    options.xcds = integer(name, value, 1, 64);
  } else if (name == "execute") {
    if (value != "0" && value != "1") refuse(name, value, "0, 1");
    options.execute = value == "1";
  } else {
    throw std::invalid_argument(
        "there is no option '" + name +
        "', allowed: threads, check, mutation, delivery, findings, matrix, progress, compute_units, xcds, "
        "execute");
  }
}

struct Settings {
  Options options;
  bool environment_read = false;
};

Settings& settings() {
  static Settings* instance = [] {
    auto* created = new Settings;
    created->options.threads = std::max(1u, std::thread::hardware_concurrency());
    return created;
  }();
  return *instance;
}

void read_environment(Settings& current) {
  if (current.environment_read) return;
  Options read = current.options;
  for (const char* name : {"threads", "check", "matrix", "progress", "compute_units", "xcds"}) {
    std::string variable = std::string("LITEATTENTION_ROCM_SIM_") + name;
    std::transform(variable.begin(), variable.end(), variable.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
    const char* value = std::getenv(variable.c_str());
    if (!value || !*value) continue;
    try {
      apply(read, name, value);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("environment variable " + variable + ": " + error.what());
    }
  }
  current.options = read;
  current.environment_read = true;
}

}  // namespace

Mutation parse_mutation(const std::string& value) {
  static const std::pair<const char*, Mutation::Kind> kKinds[] = {
      {"skip", Mutation::Kind::kSkip},       {"vmcnt", Mutation::Kind::kVmcnt},
      {"lgkmcnt", Mutation::Kind::kLgkmcnt}, {"m0", Mutation::Kind::kM0},
      {"records", Mutation::Kind::kRecords}, {"exec", Mutation::Kind::kExec},
  };
  if (value == "none") return {};
  const size_t first = value.find(':'),
               second = value.find(':', first == std::string::npos ? first : first + 1);
  try {
    for (const auto& [name, kind] : kKinds) {
      if (first == std::string::npos || value.compare(0, first, name) != 0) continue;
      Mutation mutation;
      mutation.kind = kind;
      mutation.address = std::stoull(value.substr(first + 1, second - first - 1), nullptr, 0);
      if (second != std::string::npos) mutation.amount = std::stoll(value.substr(second + 1), nullptr, 0);
      return mutation;
    }
  } catch (const std::logic_error&) {
  }
  refuse("mutation", value,
         "none, or KIND:ADDRESS[:AMOUNT] where KIND is skip, vmcnt, lgkmcnt, m0, records or exec");
}

Options options() {
  std::lock_guard lock(locks().options);
  read_environment(settings());
  return settings().options;
}

void set_option(const std::string& name, const std::string& value) {
  std::lock_guard lock(locks().options);
  read_environment(settings());
  apply(settings().options, name, value);
}

}  // namespace gfx942
