#include "races.hpp"

#include <algorithm>
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

std::string group_name(const Launch& launch, const Touch& touch) {
  const uint32_t number = touch.group - 1;
  return "workgroup (" + std::to_string(number % launch.grid[0]) + ", " +
         std::to_string(number / launch.grid[0] % launch.grid[1]) + ", " +
         std::to_string(number / launch.grid[0] / launch.grid[1]) + ")";
}

std::string lane_name(const Touch& touch) {
  return touch.lane < 0 ? "a scalar access" : "lane " + std::to_string(touch.lane);
}

// What a finding at the access `now` says.
std::string describe_race(const Wave& wave, const std::string& place, const Touch& now, bool writes,
                          const Touch& other, bool other_writes) {
  const Launch& launch = *wave.group->launch;
  const Instruction& instruction = wave.group->program->instructions()[other.step];
  const bool between_groups = other.group != now.group;
  return "race on " + place + ": " + (writes ? "written" : "read") + " by " + lane_name(now) + ", " +
         (other_writes ? "written" : "read") + " by " +
         (between_groups ? group_name(launch, other) + ", " : "") + "wave " + std::to_string(other.wave) +
         ", " + lane_name(other) + " at \"" + disassemble(instruction) + "\" at " +
         hexadecimal(instruction.address - launch.kernel->load_bias) +
         (between_groups ? "; nothing orders workgroups, and accesses below device scope are not coherent"
                         : "; no barrier lies between the end of the one and the issue of the other");
}

// Where findings are collected they are listed at both accesses, so that they are the same whichever comes
// first.
void report(const Wave& wave, const Step& step, const char* what, uint64_t byte, const Touch& now,
            bool writes, const Touch& other, bool other_writes) {
  const Launch& launch = *wave.group->launch;
  const bool lds = what[0] == 'L';
  const std::string place = std::string(what) + " " + (lds ? std::to_string(byte) : hexadecimal(byte));
  report_finding(wave, step, "races", describe_race(wave, place, now, writes, other, other_writes));
  const Instruction& instruction = wave.group->program->instructions()[other.step];
  const auto& id = wave.group->id;
  const std::string group = lds ? "workgroup (" + std::to_string(id[0]) + ", " + std::to_string(id[1]) +
                                      ", " + std::to_string(id[2]) + ")"
                                : group_name(launch, other);
  const uint64_t address = instruction.address - launch.kernel->load_bias;
  list_finding(launch, address, "races",
               "kernel " + launch.kernel->name + ", " + group + ", wave " + std::to_string(other.wave) +
                   ", \"" + disassemble(instruction) + "\" at " + hexadecimal(address) + ": " +
                   describe_race(wave, place, other, other_writes, now, writes));
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

void split(DwordHistory& dword) {
  dword.bytes = std::make_unique<std::array<ByteHistory, 4>>();
  for (uint8_t i = 0; i < 4; ++i) {
    ByteHistory& byte = (*dword.bytes)[i];
    byte = dword.whole;
    for (Touch* touch : {&byte.write, &byte.read[0], &byte.read[1]}) touch->byte += i;
  }
}

// Calls `find(address)` for the history of each aligned dword of a lane's range.
template <class Find>
void access_range(Wave& wave, const Step& step, const char* what, const LaneRange& range, Touch& now,
                  Access kind, const Find& find) {
  now.lane = range.lane;
  now.bytes = static_cast<uint8_t>(range.bytes);
  const uint64_t end = range.address + range.bytes;
  for (uint64_t address = range.address; address < end;) {
    const uint64_t next = std::min(end, (address & ~uint64_t{3}) + 4);
    DwordHistory* dword = find(address);
    if (!dword) return;
    if (!dword->bytes && next - address < 4) split(*dword);
    if (!dword->bytes) {
      now.byte = static_cast<uint8_t>(address - range.address);
      access_byte(wave, step, what, address, dword->whole, now, kind);
    } else {
      for (uint64_t byte = address; byte < next; ++byte) {
        now.byte = static_cast<uint8_t>(byte - range.address);
        access_byte(wave, step, what, byte, (*dword->bytes)[byte & 3], now, kind);
      }
    }
    address = next;
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
  const auto find = [this](uint64_t address) {
    return address / 4 < dwords_.size() ? &dwords_[address / 4] : nullptr;
  };
  for (const LaneRange& range : ranges) access_range(wave, step, "LDS byte", range, now, kind, find);
}

void MemoryRaces::access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
                         uint32_t epoch, uint64_t serial) {
  const AddressSpace& memory = *wave.group->launch->memory;
  Touch now = touch_of(wave, step, epoch);
  now.scope = wave.group->program->traits(step).scope;
  now.serial = static_cast<uint32_t>(serial);
  const std::lock_guard lock(mutex_);
  const Region* region = nullptr;
  Page* page = nullptr;
  uint64_t page_number = ~uint64_t{0};
  const auto find = [&](uint64_t address) {
    if (address / kPage != page_number) {
      page_number = address / kPage;
      auto& place = pages_[page_number];
      if (!place) place = std::make_unique<Page>();
      page = place.get();
    }
    return &(*page)[address % kPage / 4];
  };
  for (const LaneRange& range : ranges) {
    if (!region || range.address < region->begin || range.address + range.bytes > region->end)
      region = memory.find(range.address, range.bytes);
    // Nobody writes to read-only memory; what lies outside every region is reported where it is accessed.
    if (!region || (kind == Access::kLoad && !region->writable)) continue;
    access_range(wave, step, "byte", range, now, kind, find);
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
