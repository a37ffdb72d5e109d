// Runs Kafka's command-line tools one after the other, without a JVM for each.  A line of standard input is the name of
// a tool's class and its arguments, with tabs between them.  The answer is a line "STATUS BYTES", and so many bytes: what
// the tool has printed, to standard output and standard error together.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

public final class KafkaTools {
    /** A tool exits, maybe inside of a block that catches all exceptions; then it exits again. */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    private static Integer status;

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        // Some tools keep the stream of their first run.
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(stream);
        System.setErr(stream);
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            printed.reset();
            run(line.split("\t", -1));
            stream.flush();
            answers.println(status + " " + printed.size());
            printed.writeTo(answers);
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void exit(int code) {
        if (status == null) status = code;
        throw new Exited();
    }

    /** Sets status: 0 for a tool that just returns, 1 for one that throws. */
    private static void run(String[] words) throws ReflectiveOperationException {
        status = null;
        Object arguments = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                thrown.getCause().printStackTrace();
                if (status == null) status = 1;
            }
        }
        if (status == null) status = 0;
    }
}
