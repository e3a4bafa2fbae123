"""Computes adversarial examples from parameters that are some steps old (ConAdv).

    delta_t = argmax over |d| <= epsilon of L(theta_{t-tau}; x_t + d, y_t)      by steps of the sign
    loss_t  = (1 - alpha) L(theta_t; x_t, y_t) + alpha L(theta_t; x_t + delta_t, y_t)

theta_t are the parameters at step t, x_t and y_t the images and labels of its batch, and L is the
loss. With tau above 0 the attack does not read theta_t, so that it need not wait for the previous
update.

The source is Liu et al., arXiv:2106.00221. The code that the authors released attacks toward a
random wrong class. The attack in this module leads away from the right class, as in the formula. An
argument `xp` is a namespace of array functions, such as `keras.ops`.
"""


def start(xp, x, noise, is_clean, epsilon):
    """Returns the start of an attack: each image itself, or a random point within epsilon of it.

    Args:
        xp: A namespace of array functions.
        x: The images.
        noise: Uniform random numbers in [-1, 1), of the shape of x.
        is_clean: For each image, whether the attack starts at the image itself; booleans of shape
            (batch, 1, 1, ...).
        epsilon: The largest change of a pixel, in the units of the images.
    """
    return xp.where(is_clean, x, x + epsilon * noise)


def attack(xp, gradient, x, begin, *, epsilon, step_size, steps, input_range):
    """Returns adversarial images, by steps along the sign of the gradient.

    After each step the result is projected to the nearest point that is within epsilon of the
    images, and within the input range. A pixel whose gradient is 0 does not change.

    Args:
        xp: A namespace of array functions.
        gradient: A function that takes images and returns the gradient of the loss with respect to
            them, at the parameters of tau steps ago.
        x: The images.
        begin: The images at which the attack begins.
        epsilon: The largest change of a pixel, in the units of the images.
        step_size: The size of one step, in the units of the images.
        steps: The number of steps.
        input_range: The lowest and the highest pixel, in the units of the images.
    """
    adversarial = projected(xp, begin, x, epsilon, input_range)
    for _ in range(steps):
        moved = adversarial + step_size * xp.sign(gradient(adversarial))
        adversarial = projected(xp, moved, x, epsilon, input_range)
    return adversarial


def projected(xp, adversarial, x, epsilon, input_range):
    """Returns the nearest point that is within epsilon of x, and within the input range.

    Args:
        xp: A namespace of array functions.
        adversarial: The point to project.
        x: The images.
        epsilon: The largest change of a pixel, in the units of the images.
        input_range: The lowest and the highest pixel, in the units of the images.
    """
    low, high = input_range
    near = xp.minimum(xp.maximum(adversarial, x - epsilon), x + epsilon)
    return xp.minimum(xp.maximum(near, low), high)


def weighted(clean, adversarial, alpha):
    """Returns the loss of a step, (1 - alpha) `clean` + alpha `adversarial`.

    Args:
        clean: The loss of the clean images.
        adversarial: The loss of the adversarial images.
        alpha: The weight of the adversarial loss, in [0, 1].
    """
    return (1 - alpha) * clean + alpha * adversarial


def stale(line, theta):
    """Returns theta_{t-tau}, the parameters that the attack reads; theta_t if tau is 0.

    Args:
        line: The parameters of the last tau steps, oldest first.
        theta: The current parameters, theta_t.
    """
    return line[0] if line else theta


def delayed(line, theta):
    """Returns the parameters of the last tau steps, as the next step needs them.

    The oldest ones of `line` are dropped, and the current ones are added. Before the first step,
    `line` consists of copies of theta_0.

    Args:
        line: The parameters of the last tau steps, oldest first.
        theta: The current parameters, theta_t.
    """
    return [*line[1:], theta] if line else []
