#include "races.hpp"

#include <string>

#include "observation.hpp"

namespace gfx942 {

namespace {

// Whether a message orders `before`, of another workgroup or of another wave, before `now`.
bool is_ordered(const Wave& wave, const Touch& before, const Touch& now, bool writes) {
  for (const Acquire& acquire : wave.group->observation->acquires) {
    if (!acquire.from.covers(before, now.group)) continue;
    if (acquire.wave == now.wave ? wave.checks.is_outstanding(acquire.serial) : acquire.epoch >= now.epoch)
      continue;
    if (acquire.invalidated || writes || now.scope == Scope::kDevice) return true;
  }
  return false;
}

// A compare-and-swap checks what a plain load of the same element has read, as loops of them do.
bool is_checked_load(const Touch& before, bool before_writes, const Touch& now, bool writes) {
  return now.same_element(before) && ((before.compares && !writes) || (now.compares && !before_writes));
}

bool conflicts(const Wave& wave, const Touch& before, bool before_writes, const Touch& now, bool writes) {
  if (!before.group || before.same_wave(now)) return false;
  const bool same_group = before.group == now.group;
  if (same_group && before.epoch != now.epoch) return false;
  const Scope needed = same_group ? Scope::kWorkgroup : Scope::kDevice;
  if (before.scope >= needed && now.scope >= needed) return false;
  if (is_checked_load(before, before_writes, now, writes)) return false;
  return !is_ordered(wave, before, now, writes);
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

uint32_t group_number(const Wave& wave) {
  const Launch& launch = *wave.group->launch;
  const auto& id = wave.group->id;
  return 1 + id[0] + launch.grid[0] * (id[1] + launch.grid[1] * id[2]);
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
    const uint32_t number = other.group - 1;
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
  if (conflicts(wave, byte.write, true, now, writes))
    report(wave, step, what, address, now, writes, byte.write, true);
  if (writes) {
    for (const Touch& reader : byte.read)
      if (conflicts(wave, reader, false, now, writes))
        report(wave, step, what, address, now, writes, reader, false);
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
  now.compares = wave.group->program->traits(step).compares;
  return now;
}

void add(std::vector<Release>& releases, const Release& added) {
  for (Release& release : releases) {
    if (release.group != added.group || release.wave != added.wave) continue;
    release = added;  // a wave's later message covers what an earlier one does
    return;
  }
  releases.push_back(added);
}

void add(Acquires& acquires, const Acquire& added) {
  for (Acquire& acquire : acquires) {
    if (acquire.from.group != added.from.group || acquire.from.wave != added.from.wave ||
        acquire.wave != added.wave)
      continue;
    if (acquire.from.serial == added.from.serial && acquire.from.plain_serial == added.from.plain_serial)
      return;
    if (acquire.invalidated) continue;
    acquire = added;
    return;
  }
  acquires.push_back(added);
}

Release release_of(const Wave& wave, uint32_t epoch) {
  Release release;
  release.group = group_number(wave);
  release.wave = static_cast<uint8_t>(wave.index);
  release.serial = static_cast<uint32_t>(wave.checks.completed());
  release.epoch = epoch;
  const WriteBack& written = wave.observation->write_back;
  if (written.serial && !wave.checks.is_outstanding(written.serial)) {
    release.plain_serial = static_cast<uint32_t>(written.serial);
    release.plain_epoch = written.epoch;
  }
  return release;
}

}  // namespace

bool Release::covers(const Touch& before, uint32_t reader_group) const {
  if (before.group != group) return false;
  const bool visible = before.scope == Scope::kDevice || reader_group == group;
  return before.wave == wave ? before.serial <= (visible ? serial : plain_serial)
                             : before.epoch < (visible ? epoch : plain_epoch);
}

void LdsRaces::access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
                      uint32_t epoch) {
  Touch now = touch_of(wave, step, epoch);
  now.group = 1;  // one workgroup at a time
  now.scope = kind == Access::kAtomic ? Scope::kDevice : Scope::kWave;
  for (const LaneRange& range : ranges) {
    now.lane = range.lane;
    now.bytes = static_cast<uint8_t>(range.bytes);
    for (uint64_t byte = range.address; byte < range.address + range.bytes && byte < bytes_.size(); ++byte) {
      now.byte = static_cast<uint8_t>(byte - range.address);
      access_byte(wave, step, "LDS byte", byte, bytes_[byte], now, kind);
    }
  }
}

void MemoryRaces::access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
                         uint32_t epoch, uint64_t serial) {
  const AddressSpace& memory = *wave.group->launch->memory;
  Touch now = touch_of(wave, step, epoch);
  now.scope = wave.group->program->traits(step).scope;
  now.serial = static_cast<uint32_t>(serial);
  const std::lock_guard lock(mutex_);
  const Region* region = nullptr;
  std::array<ByteHistory, kPage>* page = nullptr;
  uint64_t page_number = ~uint64_t{0};
  for (const LaneRange& range : ranges) {
    if (!region || range.address < region->begin || range.address + range.bytes > region->end)
      region = memory.find(range.address, range.bytes);
    // Nobody writes to read-only memory; what lies outside every region is reported where it is accessed.
    if (!region || (kind == Access::kLoad && !region->writable)) continue;
    now.lane = range.lane;
    now.bytes = static_cast<uint8_t>(range.bytes);
    for (uint64_t byte = range.address; byte < range.address + range.bytes; ++byte) {
      if (byte / kPage != page_number) {
        page_number = byte / kPage;
        auto& place = pages_[page_number];
        if (!place) place = std::make_unique<std::array<ByteHistory, kPage>>();
        page = place.get();
      }
      now.byte = static_cast<uint8_t>(byte - range.address);
      access_byte(wave, step, "byte", byte, (*page)[byte % kPage], now, kind);
    }
  }
}

void MemoryRaces::send(Wave& wave, const InstructionTraits& traits, const std::vector<LaneRange>& ranges,
                       uint32_t epoch) {
  const Release own = release_of(wave, epoch);
  const std::lock_guard lock(mutex_);
  for (const LaneRange& range : ranges) {
    std::vector<Release>& sent = messages_[range.address];
    if (traits.access == Access::kStore) sent.clear();  // a read-modify-write hands on what it meets
    add(sent, own);
    for (const Acquire& acquire : wave.group->observation->acquires)
      if (acquire.wave == own.wave ? !wave.checks.is_outstanding(acquire.serial) : acquire.epoch < epoch)
        add(sent, acquire.from);
  }
}

void MemoryRaces::receive(Wave& wave, const std::vector<LaneRange>& ranges, uint32_t epoch, uint64_t serial) {
  const auto index = static_cast<uint8_t>(wave.index);
  const uint32_t group = group_number(wave);
  const std::lock_guard lock(mutex_);
  for (const LaneRange& range : ranges) {
    const auto met = messages_.find(range.address);
    if (met == messages_.end()) continue;
    for (const Release& release : met->second)
      if (release.group != group || release.wave != index)
        add(wave.group->observation->acquires, {release, index, epoch, serial, false});
  }
}

void invalidate_caches(Wave& wave, uint32_t epoch) {
  for (Acquire& acquire : wave.group->observation->acquires) {
    if (acquire.wave != wave.index || acquire.invalidated || wave.checks.is_outstanding(acquire.serial))
      continue;
    acquire.invalidated = true;
    acquire.epoch = epoch;
  }
}

}  // namespace gfx942
