import com.fasterxml.jackson.databind.*;
import java.io.*;
import java.nio.ByteBuffer;
import org.apache.kafka.common.protocol.*;

/** Lines "Name version json" from stdin; with the bytes that Kafka's codec writes, as hex, in a fourth column. */
public class Golden {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        ObjectMapper mapper = new ObjectMapper();
        for (String line; (line = in.readLine()) != null; ) {
            String[] parts = line.split(" ", 3);
            short version = Short.parseShort(parts[1]);
            Class<?> converter = Class.forName("org.apache.kafka.common.message." + parts[0] + "DataJsonConverter");
            Message message = (Message) converter.getMethod("read", JsonNode.class, short.class)
                .invoke(null, mapper.readTree(parts[2]), version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(buffer), cache, version);
            StringBuilder hex = new StringBuilder();
            for (byte b : buffer.array()) hex.append(String.format("%02x", b));
            System.out.println(line + " " + hex);
        }
    }
}
