// SPDX-License-Identifier: Apache-2.0

const LEAST = 60, MOST = 300; // limits of the shown window, in seconds

// key identifies a session: a host can serve a volume and attach another of the same name.
export function key(session) {
  return session.role + "/" + session.name;
}

// Past holds the samples of the window, oldest first, with begin, end and length in seconds.
export class Past {
  samples = [];

  // add adds a sample, unless a newer one was added: after a reconnection, the agent may repeat
  // samples.
  add(sample) {
    sample.end = Date.parse(sample.time) / 1000;
    sample.seconds = sample.interval_ns / 1e9;
    const last = this.newest();
    sample.begin = sample.end - sample.seconds;
    if (last && Math.abs(sample.begin - last.end) < 0.1) {
      sample.begin = last.end; // hides the difference between wall clock and interval
    }
    if (last && sample.end <= last.end && sample.end > last.end - MOST) {
      return;
    }
    if (last && sample.end <= last.end) {
      this.samples = []; // the agent's clock was set back
    }
    this.samples.push(sample);
    while (this.samples[0].end < sample.end - MOST) {
      this.samples.shift();
    }
  }

  newest() {
    return this.samples[this.samples.length - 1];
  }

  // window returns the begin and end of the shown window, in seconds.
  window() {
    const newest = this.newest();
    if (!newest) {
      return [Date.now() / 1000 - LEAST, Date.now() / 1000];
    }
    const past = newest.end - this.samples[0].begin;
    return [newest.end - Math.min(MOST, Math.max(LEAST, past)), newest.end];
  }

  // of returns the picked session of a sample, or all sessions if none is picked.
  static of(sample, picked) {
    return picked ? sample.sessions.filter(s => key(s) === picked) : sample.sessions;
  }

  // throughput returns times, and bytes per second read and written; null in gaps without samples.
  throughput(picked) {
    const times = [], read = [], write = [];
    let end = null;
    for (const sample of this.samples) {
      if (end !== null && sample.end - end > 2.5 * sample.seconds) {
        times.push(end + sample.seconds);
        read.push(null);
        write.push(null);
      }
      end = sample.end;
      const sessions = Past.of(sample, picked);
      times.push(end);
      read.push(sessions.reduce((sum, s) => sum + s.read.bytes_per_second, 0));
      write.push(sessions.reduce((sum, s) => sum + s.write.bytes_per_second, 0));
    }
    return [times, read, write];
  }

  // heat returns the begin and end of each sample in seconds, and a Map from bucket to count.
  heat(picked) {
    return this.samples.map(sample => {
      const counts = new Map();
      for (const session of Past.of(sample, picked)) {
        for (const [bucket, n] of Object.entries(session.heat ?? {})) {
          counts.set(Number(bucket), (counts.get(Number(bucket)) ?? 0) + n);
        }
      }
      return { begin: sample.begin, end: sample.end, counts };
    });
  }
}
