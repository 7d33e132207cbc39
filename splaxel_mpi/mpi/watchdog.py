"""A watch over ranks that no longer get on: it says what each of them does, and ends the job."""

import faulthandler
import json
import os
import secrets
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass

from . import world
from .signals import end_now

# Seconds in which the others must tell what they do; a limit of less than four times that leaves
# them a quarter of it.
ANSWER = 3.0
# Ranks take turns to ask, so that one asks and the others answer: seconds between them, and ranks
# after which the turns are over.
TURN, LAST_TURN = 0.25, 8
TICKS = 40  # looks within a limit, at least one a second
# Seconds in which a rank that was asked does not ask itself: the asking rank ends the job sooner.
QUIET = 30.0
LONGEST = 512  # bytes of a message; a phase is cut to fit
SHOWN = 8  # ranks named one by one


@dataclass
class Word:
    """What a rank told of itself."""

    phase: str  # stages that it is in
    seconds: float  # since when nothing has changed
    moves: int  # stages and collectives that it has entered so far


class Watchdog:
    """Context manager: a thread looks whether this rank gets on, and never calls MPI but to end.

    limit: seconds in one place after which the run ends, 0 for no watch; comm: communicator of
    all ranks; timers: train.timers.Timers, whose ``moves`` change as long as a rank gets on.
    Shortly before the limit a rank asks the others by UDP what they do: each shows its
    stack, the one that asked names those that gave no answer or lag behind, and ends the job.
    Making it is collective. Time in which this whole process stood still does not count: a job
    that a scheduler suspends goes on as if nothing had happened. faulthandler shows the stacks of
    a rank whose Python cannot run.
    """

    def __init__(self, limit, comm, timers):
        self.limit, self.timers = limit, timers
        self.rank, self.ranks = comm.rank, comm.size
        self._over = threading.Event()
        self._still, self._quiet = 0.0, 0.0
        self._answers, self._asking = {}, False
        self._shown = False
        if not limit:
            return
        self._answer = min(ANSWER, limit / 4)
        turns = min(TURN, limit / 4 / LAST_TURN) * min(self.rank, LAST_TURN)
        self._ask_at = limit - 2 * self._answer + turns
        self._tick = min(1.0, limit / TICKS)
        self._meet(comm)

    def _meet(self, comm):
        """Open this rank's socket and learn of the others'."""
        node = world.node_comm(comm)
        alone = node.size == comm.size
        node.Free()
        # on a single node nobody outside can reach the socket
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1" if alone else "", 0))
        self._socket.settimeout(self._tick)
        self._token = comm.bcast(secrets.token_hex(8))
        host = socket.gethostname()
        mine = (host, os.getpid(), self._socket.getsockname()[1])
        self._places = comm.allgather(mine)
        self._local = {r for r, place in enumerate(self._places) if alone or place[0] == host}

    def __enter__(self):
        if self.limit:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *error):
        if self.limit:
            self._over.set()
            faulthandler.cancel_dump_traceback_later()

    def _watch(self):
        moves, then = self.timers.moves, time.monotonic()
        while not self._over.is_set():
            if sys.__stderr__ is not None:
                faulthandler.dump_traceback_later(self.limit, file=sys.__stderr__)
            self._listen()
            now = time.monotonic()
            # a process that was stopped finds that far more time has passed than it waited
            passed, then = min(now - then, 2 * self._tick), now
            if self.timers.moves != moves:
                moves, self._still, self._shown = self.timers.moves, 0.0, False
            else:
                self._still += passed
            if self._still >= self._ask_at and now >= self._quiet:
                self._alarm()
        self._socket.close()

    def _word(self):
        """What this rank tells of itself."""
        return Word(self.timers.place[: LONGEST // 4], round(self._still, 1), self.timers.moves)

    def _alarm(self):
        """Ask the others, tell, and end the job unless this rank got on meanwhile."""
        moves, self._asking = self.timers.moves, True
        self._answers = {self.rank: self._word()}
        self._show()
        for rank in range(self.ranks):
            if rank != self.rank:
                self._send(rank, "ask", None)
        end = time.monotonic() + self._answer
        while time.monotonic() < end and len(self._answers) < self.ranks:
            self._listen()
        self._asking = False
        if self._over.is_set() or self.timers.moves != moves:
            return
        limit = f"{self.limit:g}"
        world.tell(f"splaxel-mpi: error: no progress within {limit} s (mpi.timeout={limit}): "
                   f"{verdict(self._answers, self._places)}")
        end_now(1)

    def _listen(self):
        """Take one message, or wait a tick for it."""
        try:
            data, _ = self._socket.recvfrom(4 * LONGEST)
            message = json.loads(data)
            if message["token"] != self._token:
                return
            rank, kind = int(message["rank"]), message["kind"]
            if not 0 <= rank < self.ranks:
                return
            if kind == "ask":
                self._quiet = time.monotonic() + QUIET
                self._send(rank, "answer", vars(self._word()))
                self._show()
            elif kind == "answer" and self._asking:
                word = message["word"]
                phase = "".join(c for c in str(word["phase"])[:LONGEST] if c.isprintable())
                self._answers[rank] = Word(phase, float(word["seconds"]), int(word["moves"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # silence for a tick, or nothing of ours

    def _send(self, rank, kind, word):
        host, _, port = self._places[rank]
        message = dict(token=self._token, rank=self.rank, kind=kind, word=word)
        try:
            place = ("127.0.0.1" if rank in self._local else host, port)
            self._socket.sendto(json.dumps(message).encode(), place)
        except OSError:
            pass  # it counts as silent

    def _show(self):
        """Stacks of all threads of this rank on stderr, once for each standstill."""
        if self._shown:
            return
        self._shown = True
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        tag = f"[rank {self.rank}] "
        word = self._word()
        lines = [f"for {word.seconds:g} s in: {word.phase}"]
        for number, frame in sys._current_frames().items():
            if number != threading.get_ident():
                lines.append(f"thread {names.get(number, number)}, the innermost call last:")
                lines += "".join(traceback.format_stack(frame)).splitlines()
        world.show("\n".join(tag + line for line in lines))


def verdict(words, places):
    """One line on who holds up whom. words: {rank: Word} of those that answered; places:
    (host, process, port) of each rank."""
    silent = [rank for rank in range(len(places)) if rank not in words]
    parts = []
    if silent:
        parts.append(f"{_named(silent, places)} gave no answer: stopped, dead or cut off")
    # ranks that wait for others all stand still; one that moves, or is behind, is waited for
    most = max(word.moves for word in words.values())
    behind = [rank for rank, word in words.items() if word.moves < most]
    if behind and not silent:
        least = min(behind, key=lambda rank: words[rank].moves)
        parts.append(f"{_named([least], places)} is furthest behind, in {words[least].phase}")
    phases = {}
    for rank, word in sorted(words.items()):
        phases.setdefault(word.phase, []).append(rank)
    for phase, ranks in phases.items():
        parts.append(f"{_counted(ranks)} in {phase}")
    return "; ".join(parts)


def _named(ranks, places):
    named = [f"rank {rank} (process {places[rank][1]} on {places[rank][0]})" for rank in ranks]
    more = len(named) - SHOWN
    return ", ".join(named[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _counted(ranks):
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:SHOWN]))
    return f"ranks {shown}" + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
