"""Goldens of MXNet 1.9.1: LAMB and LARS, called as Gluon's Trainer calls them."""

import load
import mxnet
import others
import problem

TRUST = {"momentum": 0.9, "eta": others.TRUST}
CASES = {
    "lamb": ("lamb", mxnet.optimizer.LAMB, {}),
    "lamb_upper_bound": ("lamb", mxnet.optimizer.LAMB, {"upper_bound": 1.0}),
    "lamb_lower_bound": ("lamb", mxnet.optimizer.LAMB, {"lower_bound": 0.5}),
    "lars": ("lars", mxnet.optimizer.LARS, TRUST),
    "lars_no_correction": ("lars", mxnet.optimizer.LARS, dict(TRUST, momentum_correction=False)),
}


def name_of(path):
    """MXNet's layers name their parameters so, and by these names it decays and adapts."""
    return path.replace("/", "_").replace("kernel", "weight").replace("embeddings", "weight")


def run(rule, optimizer_class, arguments):
    weights = {path: mxnet.nd.array(problem.START[path]) for path in problem.START}
    names = dict(enumerate(map(name_of, weights)))
    optimizer = optimizer_class(wd=others.DECAY, param_idx2name=names, **arguments)
    updater = mxnet.optimizer.get_updater(optimizer)

    def step(rate, gradients):
        optimizer.set_learning_rate(rate)
        given = [mxnet.nd.array(gradients[path]) for path in weights]
        # As the Trainer does, as many in one call as the optimizer takes.
        each, indices, arrays = optimizer.aggregate_num, list(names), list(weights.values())
        for i in range(0, len(indices), each):
            updater(indices[i : i + each], given[i : i + each], arrays[i : i + each])

    recorded = dict(arguments, weight_decay=others.DECAY)
    return others.case(rule, recorded, lambda path: weights[path].asnumpy(), step)


def main():
    cases = {name: run(*case) for name, case in CASES.items()}
    load.write("mxnet", cases=cases, distributions=["mxnet", "numpy"])


if __name__ == "__main__":
    main()
