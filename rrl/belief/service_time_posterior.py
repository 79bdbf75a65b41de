"""The posterior of ln S: one Gaussian process for each hypothesis, averaged over those that are plausible.

All entries seen are conditioned on together (`drift.Evidence`). The hypotheses are told apart by their
likelihood. There are generic ones, and one for each kind of machine that a prior was learned of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import numpy as np

from rrl.belief import cholesky
from rrl.belief import service_time_process as process
from rrl.belief.drift import Evidence
from rrl.belief.learned_prior import Kind
from rrl.belief.remembered import MAX_ENTRIES
from rrl.belief.service_time_process import AXIS_SD, CROWDING_SD, FIELD_SD, WEIGHTS, Fit, Hypothesis, Terms
from rrl.belief.service_time_table import ServiceTimeTable

# Of what each entry has alone, which nothing tells but a batch of it. Each value is a hypothesis.
OWN_SDS = (0.004, 0.03, 0.1)
UTILISATIONS = (0.6, 1.0)  # η
# Nats of the tempered likelihood below the best, up to which a hypothesis is plausible.
MAX_NATS_BELOW_BEST = 3.0
MAX_PLAUSIBLE = 8
# From so many entries on, hypotheses hardly differ in how uncertain they are.
MANY_ENTRIES = 60
# Added to variances, so that entries that go together can be drawn together.
JITTER = 1e-6
# Of a table with more entries, so many are drawn together, and then each other one given those.
MAX_DRAWN_TOGETHER = 2000
# Covariances with so many entries are kept: those seen, under both disciplines.
MAX_ROWS = 2 * MAX_ENTRIES


class ServiceTimePosterior:
    """Means, deviations and draws of ln S for the P entries of a table."""

    def __init__(self, table: ServiceTimeTable, cores: int | None, kinds: Sequence[Kind]) -> None:
        self._points = table.points
        self._usual_cores = float(cores or max(table.intra[-1], table.instances[-1]))
        self._one_by_one = table.one_by_one
        self._terms = self._all_terms(cores is not None, len(table.instances) > 1, kinds)
        self._rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._log_times_a_priori = self._expected_a_priori()
        self._forget()

    def _forget(self) -> None:
        self._first_log_time = math.nan
        self._fits: list[Fit] = []  # of the plausible hypotheses
        self._weights = np.empty(0)  # (hypotheses,) plausibility of each
        self._means = np.empty((0, len(self._points)))  # (hypotheses, P) ln S
        self._smooth = self._crowding = np.empty((0, 0))  # (entries, P) prior covariance of f, and of h
        self.seen = np.empty(0, int)
        """(entries,) the numbers of those seen."""
        self.log_times = self._log_times_a_priori
        """(P,) ln S in the mean, where the machine is as it usually is."""

    def anew(self) -> ServiceTimePosterior:
        """One that has seen nothing yet. What is known beforehand takes long to find, and is shared."""
        other = copy(self)
        other._forget()
        return other

    @property
    def known(self) -> bool:
        """False until something was conditioned on."""
        return bool(self._fits)

    @property
    def all_hypotheses(self) -> list[Hypothesis]:
        return list(self._terms)

    @property
    def plausible(self) -> list[Hypothesis]:
        return [fit.hypothesis for fit in self._fits]

    def see(self, entries: np.ndarray, first_log_time: float) -> None:
        """Names the entries that all evidence from now on is of, and ln S_1."""
        self._first_log_time = first_log_time
        if np.array_equal(entries, self.seen):
            return
        self.seen = entries
        rows = [self._row(number) for number in entries]
        self._smooth, self._crowding = (np.stack(each) for each in zip(*rows, strict=True))

    def conditioned(self, evidence: Evidence, hypotheses: list[Hypothesis]) -> list[Fit]:
        """The likeliest first. What several hypotheses share is computed once."""
        y = evidence.log_times - self._first_log_time
        smooth, crowding = self._smooth[:, self.seen], self._crowding[:, self.seen]
        expected: dict[tuple[float, float, str], tuple[np.ndarray, np.ndarray]] = {}
        beside: dict[tuple[float, bool, float], np.ndarray] = {}  # covariances of f + χ·h and noise
        fits = []
        for h in hypotheses:
            of_terms, of_field = (h.cores, h.utilisation, h.kind), (h.field, h.crowding, h.own_sd)
            if of_terms not in expected:
                mean, factor = self._terms[h].mean[self.seen], self._terms[h].factor[self.seen]
                expected[of_terms] = y - mean, factor @ factor.T
            if of_field not in beside:
                told = h.field**2 * smooth + evidence.noise
                told = told + crowding if h.crowding else told
                beside[of_field] = told + h.own_sd**2 * np.eye(len(y))
            residual, covariance = expected[of_terms]
            fits.append(process.conditioned(residual, covariance + beside[of_field], h, self._usual_cores))
        return sorted(fits, key=lambda fit: -fit.plausibility)

    def take(self, fits: list[Fit]) -> None:
        """Averages over the plausible ones of these, of which the likeliest is first."""
        best = fits[0].plausibility
        self._fits = [fit for fit in fits if fit.plausibility > best - MAX_NATS_BELOW_BEST][:MAX_PLAUSIBLE]
        weights = np.exp([fit.plausibility - best for fit in self._fits])
        self._weights = weights / weights.sum()
        self._means = self._first_log_time + self._expected_given(self._fits)
        self.log_times = self._weights @ self._means

    def standard_deviations(self, numbers: np.ndarray, beside: int | None = None) -> np.ndarray:
        """(K,) of ln S at these entries, or of what it differs by from that of one entry, `beside`."""
        fits, weights = self._fits, self._weights
        if len(self.seen) > MANY_ENTRIES:
            fits, weights = fits[:1], np.ones(1)
        all_numbers = numbers if beside is None else np.append(numbers, beside)
        within = np.zeros(len(numbers))
        for fit, weight in zip(fits, weights, strict=True):
            within += weight * self._variances(fit, all_numbers, beside)
        means = self._means[:, numbers]
        if beside is not None:
            means = means - self._means[:, [beside]]
        between = self._weights @ (means - self._weights @ means) ** 2
        return np.asarray(np.sqrt(within + between))

    def draws(self, count: int, rng: np.random.Generator, inflation: float) -> np.ndarray:
        """(count, P) ln S, all entries drawn together; deviations `inflation` times as large."""
        counts = rng.multinomial(count, self._weights)
        drawn = [self._drawn(k, n, rng, inflation) for k, n in enumerate(counts) if n > 0]
        return rng.permutation(np.concatenate(drawn))

    def _variances(self, fit: Fit, numbers: np.ndarray, beside: int | None) -> np.ndarray:
        """(K,) of ln S under one hypothesis, or of its difference from that of the last of the numbers."""
        own = self._terms[fit.hypothesis].factor[numbers]
        v = cholesky.half_solved(fit.cholesky, self._shared(fit, numbers))
        h = fit.hypothesis
        field = h.field**2 * process.smooth_variance(self._points) + h.crowding * CROWDING_SD**2
        variances = (own**2).sum(axis=1) + field + h.own_sd**2 - np.einsum("ij,ij->j", v, v)
        if beside is None:
            return np.maximum(variances, 1e-8)
        smooth_row, crowding_row = self._row(beside)
        both = h.field**2 * smooth_row[numbers] + h.crowding * crowding_row[numbers]
        both += h.own_sd**2 * (numbers == beside)
        covariances = own @ own[-1] + both - v.T @ v[:, -1]
        return np.maximum(variances + variances[-1] - 2 * covariances, 1e-8)[:-1]

    def _drawn(self, k: int, count: int, rng: np.random.Generator, inflation: float) -> np.ndarray:
        """(count, P) ln S under the k-th of the plausible hypotheses."""
        fit, size = self._fits[k], len(self._points)
        few = np.linspace(0, size - 1, min(size, MAX_DRAWN_TOGETHER)).round().astype(int)
        own = self._terms[fit.hypothesis].factor[few]
        covariance = own @ own.T + process.prior_covariance(self._points[few], fit.hypothesis)
        covariance += fit.hypothesis.own_sd**2 * np.eye(len(few))
        v = cholesky.half_solved(fit.cholesky, self._shared(fit, few))
        covariance -= v.T @ v
        lower = cholesky.factored(covariance + JITTER * np.eye(len(few)))
        normal = rng.standard_normal((len(few), count))
        deviations = np.empty((size, count))
        deviations[few] = lower @ normal
        others = np.setdiff1d(np.arange(size), few)
        for begin in range(0, len(others), MAX_DRAWN_TOGETHER):
            some = others[begin : begin + MAX_DRAWN_TOGETHER]
            theirs = self._terms[fit.hypothesis].factor[some]
            both = own @ theirs.T
            both += process.prior_covariance(self._points[few], fit.hypothesis, self._points[some])
            both -= v.T @ cholesky.half_solved(fit.cholesky, self._shared(fit, some))
            weights = cholesky.half_solved(lower, both)
            left = np.maximum(self._variances(fit, some, None) - (weights**2).sum(axis=0), 0.0)
            apart = np.sqrt(left)[:, None] * rng.standard_normal((len(some), count))
            deviations[some] = weights.T @ normal + apart
        return np.asarray(self._means[k] + inflation * deviations.T)

    def _expected_given(self, fits: Sequence[Fit]) -> np.ndarray:
        """(fits, P) ln S/S_1 given what was seen, under the hypothesis of each."""
        alphas = np.stack([fit.alpha for fit in fits])
        fields = np.array([fit.hypothesis.field for fit in fits])
        found = (fields[:, None] ** 2 * alphas) @ self._smooth
        crowded = [k for k, fit in enumerate(fits) if fit.hypothesis.crowding]
        found[crowded] += alphas[crowded] @ self._crowding
        for k, fit in enumerate(fits):
            mean, factor = self._terms[fit.hypothesis]
            found[k] += mean + factor @ (fit.alpha @ factor[self.seen])
            found[k, self.seen] += fit.hypothesis.own_sd**2 * fit.alpha
        return found

    def _shared(self, fit: Fit, numbers: np.ndarray) -> np.ndarray:
        """(entries, K) prior covariance of what was seen with these entries of the table."""
        h, factor = fit.hypothesis, self._terms[fit.hypothesis].factor
        found = factor[self.seen] @ factor[numbers].T + h.field**2 * self._smooth[:, numbers]
        found += h.own_sd**2 * (self.seen[:, None] == numbers)
        return found + self._crowding[:, numbers] if h.crowding else found

    def _row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(P,), (P,) covariance of f, and of h, between this entry and every one."""
        number = int(number)
        row = self._rows.pop(number, None)
        if row is None:
            point = self._points[number]
            row = process.smooth(self._points, point), process.crowding(self._points, point)
        self._rows[number] = row  # behind those that were asked for longer ago
        while len(self._rows) > MAX_ROWS:
            del self._rows[next(iter(self._rows))]
        return row

    def _expected_a_priori(self) -> np.ndarray:
        """(P,) ln S/S_1 before anything is known."""
        plausibility = np.exp([process.log_prior(h, self._usual_cores) for h in self._terms])
        means = np.array([each.mean for each in self._terms.values()])
        return np.asarray(plausibility @ means / plausibility.sum())

    def _with_one_by_one(self, known: Terms) -> Terms:
        return process.with_one_by_one(known, self._one_by_one)

    def _all_terms(
        self, cores_known: bool, may_crowd: bool, kinds: Sequence[Kind]
    ) -> dict[Hypothesis, Terms]:
        generic = [
            Hypothesis(round(self._usual_cores * 2 ** (third / 3), 1), utilisation, crowding, own_sd)
            for third in ([0] if cores_known else range(-4, 7))
            for utilisation in UTILISATIONS
            for crowding in ((False, True) if may_crowd else (False,))
            for own_sd in OWN_SDS
        ]
        of_cores = {
            (h.cores, h.utilisation): self._with_one_by_one(process.terms(self._points, h, WEIGHTS))
            for h in generic
        }  # many hypotheses share them
        found = {h: of_cores[h.cores, h.utilisation] for h in generic}
        for kind in kinds:
            field = kind.field_sd / math.sqrt(5 * AXIS_SD**2 + FIELD_SD**2)
            fewest, most = kind.cores
            for c in sorted({h.cores for h in generic if fewest <= h.cores <= most}):
                terms = self._with_one_by_one(process.learned_terms(self._points, c, kind))
                for own_sd in OWN_SDS[:2]:
                    found[Hypothesis(c, 1.0, False, own_sd, kind.name, field)] = terms
        return found
