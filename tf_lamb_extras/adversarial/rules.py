"""ConAdv: adversarial examples from parameters that are some steps old.

    delta_t = argmax over |d| <= epsilon of L(theta_{t-tau}; x_t + d, y_t)      by steps of the sign
    loss_t  = (1 - alpha) L(theta_t; x_t, y_t) + alpha L(theta_t; x_t + delta_t, y_t)

The attack does not read theta_t, so that it need not wait for the update before.

Source: Liu et al., arXiv:2106.00221. Unlike the released code, whose attack is aimed at a random
wrong class, this one leads away from the right one, as the formula does.
"""


def start(xp, x, noise, is_clean, epsilon):
    """The start of an attack: the image, or a point of the ball around it.

    Args:
        noise: uniform in [-1, 1), of the shape of x.
        is_clean: of each image whether it begins at the image itself, as (batch, 1, 1, ...).
    """
    return xp.where(is_clean, x, x + epsilon * noise)


def attack(xp, gradient, x, begin, *, epsilon, step_size, steps, input_range):
    """The images after so many steps of the sign of the gradient, each projected.

    A gradient of 0 moves nothing.

    Args:
        gradient: of the loss at the stale parameters, a function of the images.
        x, begin: the images, and where the attack begins.
        epsilon, step_size, input_range: in the units of the images.
    """
    adversarial = projected(xp, begin, x, epsilon, input_range)
    for _ in range(steps):
        moved = adversarial + step_size * xp.sign(gradient(adversarial))
        adversarial = projected(xp, moved, x, epsilon, input_range)
    return adversarial


def projected(xp, adversarial, x, epsilon, input_range):
    """The nearest point that is within epsilon of x and within the range."""
    low, high = input_range
    near = xp.minimum(xp.maximum(adversarial, x - epsilon), x + epsilon)
    return xp.minimum(xp.maximum(near, low), high)


def weighted(clean, adversarial, alpha):
    """The loss of both."""
    return (1 - alpha) * clean + alpha * adversarial


def stale(line, theta):
    """theta_{t-tau}: the oldest of the parameters of the last tau steps; theta_t where tau is 0."""
    return line[0] if line else theta


def delayed(line, theta):
    """The parameters of the last tau steps at the next step; before the first, all are theta_0."""
    return [*line[1:], theta] if line else []
