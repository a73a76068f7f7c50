#include "races.hpp"

#include <string>

namespace gfx942 {

namespace {

bool conflicts(const Touch& before, const Touch& now) {
  if (!before.group || (before.coherent && now.coherent)) return false;
  if (before.group != now.group) return true;
  return before.wave != now.wave && before.epoch == now.epoch;
}

void remember_read(Touch (&read)[2], const Touch& now) {
  if (!read[0].group || read[0].same_wave(now)) {
    read[0] = now;
  } else if (!read[1].group || read[1].same_wave(now)) {
    read[1] = now;
  } else if (read[0].group != now.group) {
    read[1] = now;  // readers of two workgroups conflict with any writer
  } else if (read[0].epoch != now.epoch) {
    read[0] = now;
  } else if (read[1].group == now.group && read[1].epoch != now.epoch) {
    read[1] = now;
  }
}

uint64_t group_number(const Wave& wave) {
  const Launch& launch = *wave.group->launch;
  const auto& id = wave.group->id;
  return 1 + id[0] + uint64_t{launch.grid[0]} * (id[1] + uint64_t{launch.grid[1]} * id[2]);
}

void report(const Wave& wave, const Step& step, const char* what, uint64_t byte, const Touch& now,
            bool writes, const Touch& other, bool other_writes) {
  const Program& program = *wave.group->program;
  const Instruction& instruction = program.instructions()[other.step];
  const bool between_groups = other.group != now.group;
  std::string reason =
      std::string("race on ") + what + " " + (what[0] == 'L' ? std::to_string(byte) : hexadecimal(byte)) +
      ": " + (writes ? "written" : "read") +
      (now.lane < 0 ? std::string(" by a scalar access") : " by lane " + std::to_string(now.lane)) + ", " +
      (other_writes ? "written" : "read") + " by ";
  if (between_groups) {
    const Launch& launch = *wave.group->launch;
    const uint64_t number = other.group - 1;
    reason += "workgroup (" + std::to_string(number % launch.grid[0]) + ", " +
              std::to_string(number / launch.grid[0] % launch.grid[1]) + ", " +
              std::to_string(number / launch.grid[0] / launch.grid[1]) + "), ";
  }
  reason += "wave " + std::to_string(other.wave) + ", lane " + std::to_string(other.lane) + " at \"" +
            disassemble(instruction) + "\" at " +
            hexadecimal(instruction.address - wave.group->launch->kernel->load_bias);
  reason += between_groups ? "; nothing orders workgroups, and accesses below device scope are not coherent"
                           : "; no barrier lies between the end of the one and the issue of the other";
  report_finding(wave, step, "races", reason);
}

void access_byte(Wave& wave, const Step& step, const char* what, uint64_t address, ByteHistory& byte,
                 const Touch& now, Access kind) {
  const bool writes = kind != Access::kLoad;
  if (conflicts(byte.write, now)) report(wave, step, what, address, now, writes, byte.write, true);
  if (writes) {
    for (const Touch& reader : byte.read)
      if (conflicts(reader, now)) report(wave, step, what, address, now, writes, reader, false);
    byte.write = now;
  } else {
    remember_read(byte.read, now);
  }
}

Touch touch_of(const Wave& wave, const Step& step, uint32_t epoch) {
  Touch now;
  now.group = group_number(wave);
  now.epoch = epoch;
  now.step = step.index;
  now.wave = static_cast<uint8_t>(wave.index);
  return now;
}

}  // namespace

void LdsRaces::access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
                      uint32_t epoch) {
  Touch now = touch_of(wave, step, epoch);
  now.group = 1;  // one workgroup at a time
  now.coherent = kind == Access::kAtomic;
  for (const LaneRange& range : ranges) {
    now.lane = range.lane;
    for (uint64_t byte = range.address; byte < range.address + range.bytes && byte < bytes_.size(); ++byte)
      access_byte(wave, step, "LDS byte", byte, bytes_[byte], now, kind);
  }
}

void MemoryRaces::access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
                         bool device_scope, uint32_t epoch) {
  const AddressSpace& memory = *wave.group->launch->memory;
  Touch now = touch_of(wave, step, epoch);
  now.coherent = device_scope;
  const std::lock_guard lock(mutex_);
  const Region* region = nullptr;
  for (const LaneRange& range : ranges) {
    if (!region || range.address < region->begin || range.address + range.bytes > region->end)
      region = memory.find(range.address, range.bytes);
    // Nobody writes to read-only memory; what lies outside every region is reported where it is accessed.
    if (!region || (kind == Access::kLoad && !region->writable)) continue;
    now.lane = range.lane;
    for (uint64_t byte = range.address; byte < range.address + range.bytes; ++byte) {
      auto& page = pages_[byte / kPage];
      if (!page) page = std::make_unique<std::array<ByteHistory, kPage>>();
      access_byte(wave, step, "byte", byte, (*page)[byte % kPage], now, kind);
    }
  }
}

}  // namespace gfx942
